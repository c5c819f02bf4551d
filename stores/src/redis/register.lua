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
local before = redis.call('HGET', register, ARGV[4])
local function id_of(value)
    return value and string.match(value, '^[fr]([^ ]+)')
end
local function delete(id)
    local key = prefix .. 'b:' .. id
    redis.call('UNLINK', key .. ':z', key .. ':h', key .. ':m')
end
redis.call('ZCARD', used)
if ARGV[5] ~= '' and before ~= ARGV[5] then
    return 0
end
for at = 8, #ARGV, 2 do
    if id_of(redis.call('HGET', register, ARGV[at])) == ARGV[at + 1] then
        redis.call('HDEL', register, ARGV[at])
        redis.call('ZREM', used, ARGV[at])
    end
    delete(ARGV[at + 1])
end
if ARGV[4] ~= '' then
    local replaced = id_of(before)
    if replaced and replaced ~= id_of(ARGV[6]) then
        -- Its keys can no longer be found.
        delete(replaced)
        redis.call('ZREM', used, ARGV[4])
    end
    redis.call('HSET', register, ARGV[4], ARGV[6])
end
if ARGV[6] ~= '' then
    local totals = prefix .. 'b:' .. id_of(ARGV[6]) .. ':m'
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
