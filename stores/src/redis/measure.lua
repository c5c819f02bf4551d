#!lua flags=allow-oom
-- Measures the memory of a filled board.
--
-- KEYS[1]: the record, for its hash tag. ARGV: the key prefix, the board's field in the register,
-- the id, the current time in milliseconds, the bytes that a board occupies besides its keys.
-- Returns its bytes; -1 if the register does not list it as filled.
local register = ARGV[1] .. 'boards'
local value = redis.call('HGET', register, ARGV[2])
local id = value and string.match(value, '^r([^ ]+)')
if id ~= ARGV[3] then
    return -1
end
local bytes = tonumber(ARGV[5])
for _, key in ipairs({ 'z', 'h', 'm' }) do
    bytes = bytes + (redis.call('MEMORY', 'USAGE', ARGV[1] .. 'b:' .. id .. ':' .. key, 'SAMPLES', 20) or 0)
end
redis.call('HSET', register, ARGV[2], string.format('r%s %.0f', id, bytes))
redis.call('ZADD', ARGV[1] .. 'boards:used', 'NX', ARGV[4], ARGV[2])
return bytes
