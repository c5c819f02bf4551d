#!lua flags=no-writes
-- Reads the record and, at the same moment, the entries of given members in all retained epochs.
--
-- KEYS[1]: the record. ARGV: the key prefix, the first letter of the containers, then for each
-- query a view, a group, and a list of members, preceded by its length. Returns the record (empty:
-- missing). For each query follow, for each container of its view in the record's order, the values
-- of the members (nil: none), then the number of rows of the group in all containers, and its live
-- count (empty: none).

-- Number of values that unpack can handle.
local CHUNK = 4000
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, last = ARGV[1], ARGV[2], #ARGV
local decoded = cjson.decode(record)
local live, count_hashes = decoded.live, decoded.sums or {}
local answer = { record }
local at = 3
while at <= last do
    local members = tonumber(ARGV[at + 2])
    local from, to = at + 3, at + 2 + members
    local row_count, counts_hash, live_count = 0, count_hashes[ARGV[at]], ''
    for _, container in ipairs(live[ARGV[at]] or {}) do
        if string.sub(container[1], 1, 1) == kind then
            local key = prefix .. container[1] .. ':' .. ARGV[at + 1]
            local found = {}
            row_count = row_count + redis.call('HLEN', key)
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
    if counts_hash then
        live_count = redis.call('HGET', prefix .. counts_hash, ARGV[at + 1]) or ''
    end
    answer[#answer + 1] = row_count
    answer[#answer + 1] = live_count
    at = to + 1
end
return answer
