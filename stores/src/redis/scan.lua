#!lua flags=no-writes
-- Reads the record and, at the same moment, the first groups of all containers of a view within
-- some epochs, in the order of their keys.
--
-- KEYS[1]: the record. ARGV: the key prefix, the first letter of the containers, the view, the
-- first and the last epoch, the start as ZRANGEBYLEX expects it, the maximum number of groups and
-- of rows per container. Returns the record (empty: missing), then for each container in the
-- record's order: 1 if no more groups follow, else 0, and alternating a group and its fields and
-- values, or its string in a shared container, or its number of fields if it has too many rows.

-- Estimated bytes of a packed row, and rows of a chunk.
local ROW, CHUNK = 32, 16
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind = ARGV[1], ARGV[2]
local first, last = tonumber(ARGV[4]), tonumber(ARGV[5])
local groups_max, rows_max = tonumber(ARGV[7]), tonumber(ARGV[8])

-- Reads the groups of one container.
local function read_groups(index, is_shared, rows_per_field)
    local groups = redis.call('ZRANGEBYLEX', index, ARGV[6], '+', 'LIMIT', '0', ARGV[7])
    local container_reply, row_count = { #groups < groups_max and 1 or 0 }, 0
    for _, group in ipairs(groups) do
        local key = index .. ':' .. group
        local packed = is_shared and redis.call('GET', key)
        local fields = packed and 0 or redis.call('HLEN', key)
        local rows = packed and math.ceil(#packed / ROW) or fields * rows_per_field
        if rows > rows_max and not packed then
            container_reply[#container_reply + 1] = group
            container_reply[#container_reply + 1] = fields
        elseif row_count + rows > rows_max and not (packed and #container_reply == 1) then
            container_reply[1] = 0
            return container_reply
        else
            row_count = row_count + rows
            container_reply[#container_reply + 1] = group
            container_reply[#container_reply + 1] = packed or redis.call('HGETALL', key)
        end
    end
    return container_reply
end

local reply = { record }
for _, container in ipairs(cjson.decode(record).live[ARGV[3]] or {}) do
    local letter = string.sub(container[1], 1, 1)
    local is_shared = letter == 'p' and kind == 'd'
    local has_chunks = letter == 'c' and kind == 'd'
    if (is_shared or has_chunks or letter == kind) and container[2] >= first and container[2] <= last then
        local index = prefix .. string.match(container[1], '^[^#]+')
        reply[#reply + 1] = read_groups(index, is_shared, has_chunks and CHUNK or 1)
    end
end
return reply
