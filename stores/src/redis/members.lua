#!lua flags=no-writes
-- Reads the record and, of the same moment, the rows of some members in all epochs that are kept.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the first letter of the places; then
-- for each question a view, a group, how many members follow, and these.
-- Answers the record (empty: missing), then for each question and each place of its view, in the
-- record's order, the values of the members in theirs (nothing where there is none).

-- Few enough values for unpack.
local CHUNK = 4000
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, last = ARGV[1], ARGV[2], #ARGV
local live = cjson.decode(record).live
local answer = { record }
local at = 3
while at <= last do
    local members = tonumber(ARGV[at + 2])
    local from, to = at + 3, at + 2 + members
    for _, place in ipairs(live[ARGV[at]] or {}) do
        if string.sub(place[1], 1, 1) == kind then
            local key = prefix .. place[1] .. ':' .. ARGV[at + 1]
            local found = {}
            for start = from, to, CHUNK do
                local stop = math.min(start + CHUNK - 1, to)
                local values = redis.call('HMGET', key, unpack(ARGV, start, stop))
                for index = 1, stop - start + 1 do
                    found[#found + 1] = values[index]
                end
            end
            answer[#answer + 1] = found
        end
    end
    at = to + 1
end
return answer
