#!lua flags=allow-oom
-- Measures a board that is filled.
--
-- KEYS[1]: the record, for its hash tag. ARGV: what all keys of the slot begin with, the board's field in
-- the register, the id, the present moment in milliseconds, what each board takes besides its keys.
-- Answers its bytes; -1 if it is not in the register as one that is filled.
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
