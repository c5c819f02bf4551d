#!lua flags=no-writes
-- Reads the record and, at the same moment, the first entries of the outbox.
--
-- KEYS[1]: the record. ARGV: the key prefix, the maximum number of entries. Returns the record
-- (empty: missing), the number of entries that were removed so far, the number of waiting entries,
-- and the first of them.
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local name = cjson.decode(record).outbox
if not name then
    return { record, '0', 0 }
end
local key = ARGV[1] .. name
local reply = { record, redis.call('GET', key .. ':taken') or '0', redis.call('LLEN', key) }
for _, entry in ipairs(redis.call('LRANGE', key, 0, tonumber(ARGV[2]) - 1)) do
    reply[#reply + 1] = entry
end
return reply
