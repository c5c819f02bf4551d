#!lua flags=allow-oom
-- Deletes rows of a container, an outbox, or live counts, if the record lists it as garbage. After
-- a failover the record may be older and still use it.
--
-- KEYS[1]: the record. ARGV: the key prefix, the container, the maximum number of rows. Returns the
-- number of deleted rows, and 1 if the container is empty now; -1 and 0 if it is not garbage.
local GROUPS, CHUNK = 100, 4000
local record = redis.call('GET', KEYS[1])
local is_garbage = false
if record then
    for _, container in ipairs(cjson.decode(record).garbage) do
        is_garbage = is_garbage or container == ARGV[2]
    end
end
if not is_garbage then
    return { -1, 0 }
end
if string.find(ARGV[2], '^[om]') then
    -- An outbox or live counts of an earlier generation.
    redis.call('UNLINK', ARGV[1] .. ARGV[2], ARGV[1] .. ARGV[2] .. ':taken')
    return { 0, 1 }
end
local index, limit, deleted = ARGV[1] .. ARGV[2], tonumber(ARGV[3]), 0
if string.find(ARGV[2], '^p') then
    -- Strings of packed rows; each counts as one row.
    local groups = redis.call('ZRANGE', index, 0, math.min(limit, CHUNK) - 1)
    local strings = {}
    for i, group in ipairs(groups) do
        strings[i] = index .. ':' .. group
    end
    if #groups > 0 then
        redis.call('UNLINK', unpack(strings))
        redis.call('ZREM', index, unpack(groups))
    end
    return { #groups, redis.call('ZCARD', index) == 0 and 1 or 0 }
end
while true do
    local groups = redis.call('ZRANGE', index, 0, GROUPS - 1)
    if #groups == 0 then
        return { deleted, 1 }
    end
    for _, group in ipairs(groups) do
        local key = index .. ':' .. group
        local rows = redis.call('HLEN', key)
        if deleted + rows <= limit then
            redis.call('UNLINK', key)
            redis.call('ZREM', index, group)
            deleted = deleted + rows
        else
            local cursor = '0'
            repeat
                local page = redis.call('HSCAN', key, cursor, 'COUNT', CHUNK)
                cursor = page[1]
                local fields = {}
                for field = 1, #page[2], 2 do
                    if #fields < limit - deleted and #fields < CHUNK then
                        fields[#fields + 1] = page[2][field]
                    end
                end
                if #fields > 0 then
                    deleted = deleted + redis.call('HDEL', key, unpack(fields))
                end
            until deleted >= limit or cursor == '0'
            return { deleted, 0 }
        end
    end
end
