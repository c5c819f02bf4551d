#!lua flags=no-writes
-- Reads the record and, of the same moment, the first entries that wait to be told.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, how many entries at most.
-- Answers the record (empty: missing), how many entries were taken out before, how many wait, and the
-- first of them.
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local name = cjson.decode(record).outbox
if not name then
    return { record, '0', 0 }
end
local key = ARGV[1] .. name
local answer = { record, redis.call('GET', key .. ':taken') or '0', redis.call('LLEN', key) }
for _, entry in ipairs(redis.call('LRANGE', key, 0, tonumber(ARGV[2]) - 1)) do
    answer[#answer + 1] = entry
end
return answer
