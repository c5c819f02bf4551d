#!lua flags=no-writes
-- Reads the record and, at the same moment, the entries of given members in all retained epochs.
--
-- KEYS[1]: the record. ARGV: the key prefix, the first letter of the containers, then for each
-- query a view, a group, and a list of members, preceded by its length. Returns the record (empty:
-- missing). For each query follow, for each container of its view in the record's order, the values
-- of the members (nil: none), then the number of rows of the group in all containers, and its live
-- count (empty: none).

-- Number of values that unpack can handle.
local UNPACK_MAX = 4000
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, last = ARGV[1], ARGV[2], #ARGV
local decoded = cjson.decode(record)
local live, count_hashes = decoded.live, decoded.sums or {}
local reply = { record }
local position = 3
while position <= last do
    local members = tonumber(ARGV[position + 2])
    local from, to = position + 3, position + 2 + members
    local row_count, counts_hash, live_count = 0, count_hashes[ARGV[position]], ''
    for _, container in ipairs(live[ARGV[position]] or {}) do
        if string.sub(container[1], 1, 1) == kind then
            local key = prefix .. container[1] .. ':' .. ARGV[position + 1]
            local member_values = {}
            row_count = row_count + redis.call('HLEN', key)
            for start = from, to, UNPACK_MAX do
                local stop = math.min(start + UNPACK_MAX - 1, to)
                local values = redis.call('HMGET', key, unpack(ARGV, start, stop))
                for index = 1, stop - start + 1 do
                    member_values[#member_values + 1] = values[index]
                end
            end
            reply[#reply + 1] = member_values
        end
    end
    if counts_hash then
        live_count = redis.call('HGET', prefix .. counts_hash, ARGV[position + 1]) or ''
    end
    reply[#reply + 1] = row_count
    reply[#reply + 1] = live_count
    position = to + 1
end
return reply
