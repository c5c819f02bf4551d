#!lua flags=no-writes
-- Reads the record and, of the same moment, the rows of some members in all epochs that are kept.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the first letter of the places; then
-- for each question a view, a group, how many members follow, and these.
-- Answers the record (empty: missing), then for each question and each place of its view, in the
-- record's order, the values of the members in theirs (nothing where there is none); and after each
-- question's places how many rows the group has in all of them, and the sum that is kept of its states
-- (empty: none).

-- Few enough values for unpack.
local CHUNK = 4000
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, last = ARGV[1], ARGV[2], #ARGV
local decoded = cjson.decode(record)
local live, sums = decoded.live, decoded.sums or {}
local answer = { record }
local at = 3
while at <= last do
    local members = tonumber(ARGV[at + 2])
    local from, to = at + 3, at + 2 + members
    local held, of_view, sum = 0, sums[ARGV[at]], ''
    for _, place in ipairs(live[ARGV[at]] or {}) do
        if string.sub(place[1], 1, 1) == kind then
            local key = prefix .. place[1] .. ':' .. ARGV[at + 1]
            local found = {}
            held = held + redis.call('HLEN', key)
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
    if of_view then
        sum = redis.call('HGET', prefix .. of_view, ARGV[at + 1]) or ''
    end
    answer[#answer + 1] = held
    answer[#answer + 1] = sum
    at = to + 1
end
return answer
