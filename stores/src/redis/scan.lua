#!lua flags=no-writes
-- Reads the record and, of the same moment, the first groups of all places of a view within some epochs, in
-- the order of their keys.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the first letter of the places, the view,
-- the first and the last epoch, where to begin (as ZRANGEBYLEX takes it), how many groups and how many rows
-- of each place at most.
-- Answers the record (empty: missing), then for each of these places, in the record's order: 1 if these are
-- all of its groups and else 0, and by turns a group and its fields and values, or the string of a group of a
-- place that views share; the number of its fields if these were too many by themselves.

-- About so many bytes a packed row has, and so many rows a chunk.
local ROW, CHUNK = 32, 16
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind = ARGV[1], ARGV[2]
local first, last = tonumber(ARGV[4]), tonumber(ARGV[5])
local groups_max, rows_max = tonumber(ARGV[7]), tonumber(ARGV[8])

-- What is read of one place.
local function groups_of(index, is_shared, of_field)
    local groups = redis.call('ZRANGEBYLEX', index, ARGV[6], '+', 'LIMIT', '0', ARGV[7])
    local found, sum = { #groups < groups_max and 1 or 0 }, 0
    for _, group in ipairs(groups) do
        local key = index .. ':' .. group
        local packed = is_shared and redis.call('GET', key)
        local fields = packed and 0 or redis.call('HLEN', key)
        local rows = packed and math.ceil(#packed / ROW) or fields * of_field
        if rows > rows_max and not packed then
            found[#found + 1] = group
            found[#found + 1] = fields
        elseif sum + rows > rows_max and not (packed and #found == 1) then
            found[1] = 0
            return found
        else
            sum = sum + rows
            found[#found + 1] = group
            found[#found + 1] = packed or redis.call('HGETALL', key)
        end
    end
    return found
end

local answer = { record }
for _, place in ipairs(cjson.decode(record).live[ARGV[3]] or {}) do
    local letter = string.sub(place[1], 1, 1)
    local is_shared = letter == 'p' and kind == 'd'
    local has_chunks = letter == 'c' and kind == 'd'
    if (is_shared or has_chunks or letter == kind) and place[2] >= first and place[2] <= last then
        local index = prefix .. string.match(place[1], '^[^#]+')
        answer[#answer + 1] = groups_of(index, is_shared, has_chunks and CHUNK or 1)
    end
end
return answer
