#!lua flags=allow-oom
-- Changes the register of cached boards together with the record, if the record is as expected.
--
-- KEYS[1]: the record. ARGV: the expected record, the new record, the key prefix, a field (empty:
-- none), its expected value (empty: any) and its new value, the epoch of the last change of that
-- board (0: none), then fields and ids of boards to drop. Returns 1, or the present record (empty:
-- missing), or 0 if the field has another value. After a failover, the record may be present while
-- the last steps of a fill are lost. Unless it returns 1, nothing was changed.
local record = redis.call('GET', KEYS[1]) or ''
if record ~= ARGV[1] then
    return record
end
local prefix = ARGV[3]
local register, used = prefix .. 'boards', prefix .. 'boards:used'
local old_value = redis.call('HGET', register, ARGV[4])
local function parse_id(value)
    return value and string.match(value, '^[fr]([^ ]+)')
end
local function delete(id)
    local key = prefix .. 'b:' .. id
    redis.call('UNLINK', key .. ':z', key .. ':h', key .. ':m')
end
redis.call('ZCARD', used)
if ARGV[5] ~= '' and old_value ~= ARGV[5] then
    return 0
end
for position = 8, #ARGV, 2 do
    if parse_id(redis.call('HGET', register, ARGV[position])) == ARGV[position + 1] then
        redis.call('HDEL', register, ARGV[position])
        redis.call('ZREM', used, ARGV[position])
    end
    delete(ARGV[position + 1])
end
if ARGV[4] ~= '' then
    local old_id = parse_id(old_value)
    if old_id and old_id ~= parse_id(ARGV[6]) then
        -- Its keys can no longer be found.
        delete(old_id)
        redis.call('ZREM', used, ARGV[4])
    end
    redis.call('HSET', register, ARGV[4], ARGV[6])
end
if ARGV[6] ~= '' then
    local totals = prefix .. 'b:' .. parse_id(ARGV[6]) .. ':m'
    if string.sub(ARGV[6], 1, 1) == 'f' then
        redis.call('HSET', totals, 'k', '1')
    end
    local changed = tonumber(redis.call('HGET', totals, 'c') or '0')
    if changed < tonumber(ARGV[7]) then
        redis.call('HSET', totals, 'c', ARGV[7])
    end
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
