#!lua flags=allow-oom
-- Deletes parts of a place, an outbox, or sums of states, if the record says that it is garbage: a server that lost its last writes
-- may hold a record in which it is not yet.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the place, how many parts at most.
-- Answers how many parts were deleted, and 1 if the place is empty now; -1 and 0 if it is no garbage.
local GROUPS, CHUNK = 100, 4000
local record = redis.call('GET', KEYS[1])
local is_garbage = false
if record then
    for _, place in ipairs(cjson.decode(record).garbage) do
        is_garbage = is_garbage or place == ARGV[2]
    end
end
if not is_garbage then
    return { -1, 0 }
end
if string.find(ARGV[2], '^[om]') then
    -- An outbox or sums of an earlier life.
    redis.call('UNLINK', ARGV[1] .. ARGV[2], ARGV[1] .. ARGV[2] .. ':taken')
    return { 0, 1 }
end
local index, limit, deleted = ARGV[1] .. ARGV[2], tonumber(ARGV[3]), 0
if string.find(ARGV[2], '^p') then
    -- Strings of packed rows, each of which counts as one part.
    local groups = redis.call('ZRANGE', index, 0, math.min(limit, CHUNK) - 1)
    local strings = {}
    for at, group in ipairs(groups) do
        strings[at] = index .. ':' .. group
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
