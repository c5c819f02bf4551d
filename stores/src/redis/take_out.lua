#!lua flags=allow-oom
-- Takes the first entries out of an outbox, if they are those that were read: a server that lost its
-- last writes may hold others under the same numbers.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the outbox, how many entries had been
-- taken out before, how many of the first entries go, the last of these.
-- Answers 1 if they were taken out.
local record = redis.call('GET', KEYS[1])
if not record or cjson.decode(record).outbox ~= ARGV[2] then
    return 0
end
local key = ARGV[1] .. ARGV[2]
local count = tonumber(ARGV[4])
if (redis.call('GET', key .. ':taken') or '0') ~= ARGV[3] then
    return 0
end
if redis.call('LINDEX', key, count - 1) ~= ARGV[5] then
    return 0
end
redis.call('LTRIM', key, count, -1)
redis.call('INCRBY', key .. ':taken', ARGV[4])
return 1
