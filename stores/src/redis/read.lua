#!lua flags=no-writes
-- Reads the record and, of the same moment, the groups that are asked for in all epochs that are kept.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the first letter of the places,
-- how many rows one answer may hold; then for each question a view and a group.
-- Answers the record (empty: missing), then for each question and each place of its view, in the
-- record's order, the fields and values of the group; the number of its rows if these were too many.
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, budget = ARGV[1], ARGV[2], tonumber(ARGV[3])
local live = cjson.decode(record).live
local answer = { record }
for at = 4, #ARGV, 2 do
    for _, place in ipairs(live[ARGV[at]] or {}) do
        if string.sub(place[1], 1, 1) == kind then
            local key = prefix .. place[1] .. ':' .. ARGV[at + 1]
            local rows = redis.call('HLEN', key)
            if rows > budget then
                answer[#answer + 1] = rows
            else
                budget = budget - rows
                answer[#answer + 1] = redis.call('HGETALL', key)
            end
        end
    end
end
return answer
