#!lua flags=allow-oom
-- Removes the first entries of an outbox, if they are those that were read. After a failover, other
-- entries may have the same numbers.
--
-- KEYS[1]: the record. ARGV: the key prefix, the outbox, the number of entries that were removed
-- before, the number of entries to remove, the last of these entries. Returns 1 if they were
-- removed.
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
