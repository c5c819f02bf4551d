#!lua flags=no-writes
-- Reads the record and, of the same moment, the groups that are asked for in all epochs that are kept.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the first letter of the places,
-- how many rows one answer may hold, 1 if a sum that is made takes the place of its states; then for each
-- question a view and a group.
-- Answers the record (empty: missing), then for each question the sum that is kept of the group's states
-- (empty: none) and, unless that takes their place, for each place of its view, in the record's order, the
-- fields and values of the group (of a place of chunks these), of a place that views share its string (empty: none); the
-- number of its fields if these were too many.

-- About so many bytes a packed row has, and so many rows a chunk.
local ROW, CHUNK = 32, 16
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, budget = ARGV[1], ARGV[2], tonumber(ARGV[3])
local decoded = cjson.decode(record)
local live, sums = decoded.live, decoded.sums or {}
local answer = { record }
for at = 5, #ARGV, 2 do
    local of_view, sum = sums[ARGV[at]], ''
    if of_view and kind == 's' then
        sum = redis.call('HGET', prefix .. of_view, ARGV[at + 1]) or ''
    end
    answer[#answer + 1] = sum
    local is_summed = ARGV[4] == '1' and string.sub(sum, 1, 1) == 'm'
    for _, place in ipairs(live[ARGV[at]] or {}) do
        local letter = string.sub(place[1], 1, 1)
        if letter == 'p' and kind == 'd' then
            local key = prefix .. string.match(place[1], '^[^#]+') .. ':' .. ARGV[at + 1]
            local rows = redis.call('GET', key) or ''
            budget = math.max(0, budget - math.ceil(#rows / ROW))
            answer[#answer + 1] = rows
        elseif (letter == kind or letter == 'c' and kind == 'd') and not is_summed then
            local key = prefix .. place[1] .. ':' .. ARGV[at + 1]
            local fields = redis.call('HLEN', key)
            local rows = letter == 'c' and fields * CHUNK or fields
            if rows > budget then
                answer[#answer + 1] = fields
            else
                budget = budget - rows
                answer[#answer + 1] = redis.call('HGETALL', key)
            end
        end
    end
end
return answer
