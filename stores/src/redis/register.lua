#!lua flags=allow-oom
-- Changes the register of cached boards together with the record, if that is as it was seen.
--
-- KEYS[1]: the record. ARGV: the record as seen, the new one, what all keys of the slot begin with, a
-- field (empty: none), the value that must be there (empty: any) and one to be put there, the last epoch
-- of a change of that board (0: none), then fields and ids of boards that go.
-- Answers 1, or the present record (empty: missing), and then nothing was changed.
local record = redis.call('GET', KEYS[1]) or ''
if record ~= ARGV[1] then
    return record
end
local prefix = ARGV[3]
local register, used = prefix .. 'boards', prefix .. 'boards:used'
local before = redis.call('HGET', register, ARGV[4])
redis.call('ZCARD', used)
if ARGV[5] ~= '' and before ~= ARGV[5] then
    return record
end
for at = 8, #ARGV, 2 do
    local value = redis.call('HGET', register, ARGV[at])
    if value and string.match(value, '^[fr]([^ ]+)') == ARGV[at + 1] then
        redis.call('HDEL', register, ARGV[at])
        redis.call('ZREM', used, ARGV[at])
    end
    local key = prefix .. 'b:' .. ARGV[at + 1]
    redis.call('UNLINK', key .. ':z', key .. ':h', key .. ':m')
end
if ARGV[4] ~= '' then
    redis.call('HSET', register, ARGV[4], ARGV[6])
end
if ARGV[7] ~= '0' then
    local sums = prefix .. 'b:' .. string.match(ARGV[6], '^[fr]([^ ]+)') .. ':m'
    local changed = tonumber(redis.call('HGET', sums, 'c') or '0')
    if changed < tonumber(ARGV[7]) then
        redis.call('HSET', sums, 'c', ARGV[7])
    end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
