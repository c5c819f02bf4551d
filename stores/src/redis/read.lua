#!lua flags=no-writes
-- Reads the record and, at the same moment, given groups in all retained epochs.
--
-- KEYS[1]: the record. ARGV: the key prefix, the first letter of the containers, the maximum number
-- of rows in the reply, 1 if a finished live count replaces its entries, then for each query a
-- view and a group. Returns the record (empty: missing). For each query follows the live count of
-- the group (empty: none). Unless it replaces the entries, then follows for each container of the
-- view, in the record's order: its fields and values (chunks included), or the string of a shared
-- container (empty: none), or the number of fields if there are too many rows.

-- Estimated bytes of a packed row, and rows of a chunk.
local ROW, CHUNK = 32, 16
local record = redis.call('GET', KEYS[1])
if not record then
    return { '' }
end
local prefix, kind, budget = ARGV[1], ARGV[2], tonumber(ARGV[3])
local decoded = cjson.decode(record)
local live, count_hashes = decoded.live, decoded.sums or {}
local reply = { record }
for position = 5, #ARGV, 2 do
    local counts_hash, live_count = count_hashes[ARGV[position]], ''
    if counts_hash and kind == 's' then
        live_count = redis.call('HGET', prefix .. counts_hash, ARGV[position + 1]) or ''
    end
    reply[#reply + 1] = live_count
    local replaces_rows = ARGV[4] == '1' and string.sub(live_count, 1, 1) == 'm'
    for _, container in ipairs(live[ARGV[position]] or {}) do
        local letter = string.sub(container[1], 1, 1)
        if letter == 'p' and kind == 'd' then
            local key = prefix .. string.match(container[1], '^[^#]+') .. ':' .. ARGV[position + 1]
            local rows = redis.call('GET', key) or ''
            budget = math.max(0, budget - math.ceil(#rows / ROW))
            reply[#reply + 1] = rows
        elseif (letter == kind or letter == 'c' and kind == 'd') and not replaces_rows then
            local key = prefix .. container[1] .. ':' .. ARGV[position + 1]
            local fields = redis.call('HLEN', key)
            local rows = letter == 'c' and fields * CHUNK or fields
            if rows > budget then
                reply[#reply + 1] = fields
            else
                budget = budget - rows
                reply[#reply + 1] = redis.call('HGETALL', key)
            end
        end
    end
end
return reply
