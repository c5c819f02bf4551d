#!lua flags=allow-oom
-- Changes the register of cached boards together with the record, if that is as it was seen.
--
-- KEYS[1]: the record. ARGV: the record as seen, the new one, what all keys of the slot begin with, a
-- field and a value to be put there (empty: none), then fields and ids of boards that go.
-- Answers 1, or the present record (empty: missing), and then nothing was changed.
local record = redis.call('GET', KEYS[1]) or ''
if record ~= ARGV[1] then
    return record
end
local prefix = ARGV[3]
local register, used = prefix .. 'boards', prefix .. 'boards:used'
redis.call('HLEN', register)
redis.call('ZCARD', used)
for at = 6, #ARGV, 2 do
    local value = redis.call('HGET', register, ARGV[at])
    if value and string.match(value, '^[fr]([^ ]+)') == ARGV[at + 1] then
        redis.call('HDEL', register, ARGV[at])
        redis.call('ZREM', used, ARGV[at])
    end
    local key = prefix .. 'b:' .. ARGV[at + 1]
    redis.call('UNLINK', key .. ':z', key .. ':h', key .. ':m')
end
if ARGV[4] ~= '' then
    redis.call('HSET', register, ARGV[4], ARGV[5])
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
