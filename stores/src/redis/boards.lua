#!lua flags=no-writes
-- Reads the record and, at the same moment, rows of cached boards (see board_rows.lua).
--
-- KEYS[1]: the record. ARGV: the key prefix, the mark of the record that the caller knows (empty:
-- none), then for each query the board's field in the register, the length of the rest of its
-- scores, a letter, and its parameters:
-- - `s` (totals): none;
-- - `p` (page): offset, limit;
-- - `f` (rows after a score): first number of the score, its rest with the member, limit;
-- - `a` (rows around a member): member, number of rows on each side;
-- - `m` (members) and `r` (members with ranks): a list of members, preceded by its length.
--
-- Returns the record (empty: missing; 1: the known one), then for each query the register's value
-- for the board (empty: none). If the board is filled, these follow: totals (empty: the board is
-- invalid), rank of the first row, rank of the member (-1: none), alternating members and values,
-- and for `r` their ranks.
local UNPACK_MAX = 4000
local record = redis.call('GET', KEYS[1]) or ''
if ARGV[2] ~= '' and string.find(record, ARGV[2], 1, true) then
    record = 1
end
local reply = { record }
local prefix, last = ARGV[1], #ARGV
local register = prefix .. 'boards'

-- Returns members with their values, alternating.
local function read_values(rows, members)
    local member_values = {}
    for start = 1, #members, UNPACK_MAX do
        local chunk = { unpack(members, start, math.min(start + UNPACK_MAX - 1, #members)) }
        local values = redis.call('HMGET', rows, unpack(chunk))
        for index, member in ipairs(chunk) do
            if values[index] then
                member_values[#member_values + 1] = member
                member_values[#member_values + 1] = values[index]
            end
        end
    end
    return member_values
end

-- Returns the rank of a row.
local function find_rank(ranks, member, value)
    local _, _, length, begin = string.match(value, '^(-?%d+):%d+:(-?%d+):(%d+):()')
    if not begin then
        return -1
    end
    local score = string.sub(value, begin, begin + tonumber(length) - 1)
    return redis.call('ZRANK', ranks, score .. member) or -1
end

-- True if one byte string sorts after another. Lua's `<` depends on the server's locale.
local function sorts_after(a, b)
    for index = 1, math.min(#a, #b) do
        local a_byte, b_byte = string.byte(a, index), string.byte(b, index)
        if a_byte ~= b_byte then
            return a_byte > b_byte
        end
    end
    return #a > #b
end

-- Returns the number of rows that rank at or before a number and, with the same number, a name.
local function count_up_to(ranks, number, name)
    local low, high = 0, redis.call('ZCARD', ranks)
    while low < high do
        local middle = math.floor((low + high) / 2)
        local row = redis.call('ZRANGE', ranks, middle, middle, 'WITHSCORES')
        local row_number = tonumber(row[2])
        if row_number > number or row_number == number and sorts_after(row[1], name) then
            high = middle
        else
            low = middle + 1
        end
    end
    return low
end

-- Returns a board's totals; an empty list if one of its keys was deleted.
local function read_totals(key)
    local all, count, is_marked = redis.call('HGETALL', key .. ':m'), 0, false
    for index = 1, #all, 2 do
        is_marked = is_marked or all[index] == 'k'
        if string.sub(all[index], 1, 1) == 'e' then
            count = count + tonumber(all[index + 1])
        end
    end
    if is_marked and redis.call('ZCARD', key .. ':z') == count and redis.call('HLEN', key .. ':h') == count then
        return all
    end
    return {}
end

-- Queries of one call usually concern the same board.
local registered, totals_by_key = {}, {}

local position = 3
while position <= last do
    local name = ARGV[position]
    local value = registered[name] or redis.call('HGET', register, name) or ''
    registered[name] = value
    local rest, kind = tonumber(ARGV[position + 1]), ARGV[position + 2]
    local first_of_next = position + 3
    if kind == 'p' or kind == 'a' then
        first_of_next = position + 5
    elseif kind == 'f' then
        first_of_next = position + 6
    elseif kind == 'm' or kind == 'r' then
        first_of_next = position + 4 + tonumber(ARGV[position + 3])
    end
    reply[#reply + 1] = value
    if string.sub(value, 1, 1) == 'r' then
        local key = prefix .. 'b:' .. string.match(value, '^r([^ ]+)')
        local ranks, rows = key .. ':z', key .. ':h'
        local first, member_rank, from, to, members = 0, -1, 1, 0, {}
        if kind == 'p' then
            first = tonumber(ARGV[position + 3])
            from, to = first, first + tonumber(ARGV[position + 4]) - 1
        elseif kind == 'f' then
            first = count_up_to(ranks, tonumber(ARGV[position + 3]), ARGV[position + 4])
            from, to = first, first + tonumber(ARGV[position + 5]) - 1
        elseif kind == 'a' then
            local member_value = redis.call('HGET', rows, ARGV[position + 3])
            if member_value then
                member_rank = find_rank(ranks, ARGV[position + 3], member_value)
            end
            if member_rank >= 0 then
                local around = tonumber(ARGV[position + 4])
                first = math.max(0, member_rank - around)
                from, to = first, member_rank + around
            end
        elseif kind == 'm' or kind == 'r' then
            for index = position + 4, first_of_next - 1 do
                members[#members + 1] = ARGV[index]
            end
        end
        if from <= to then
            members = redis.call('ZRANGE', ranks, from, to)
            for index, ranked in ipairs(members) do
                members[index] = string.sub(ranked, rest + 1)
            end
        end
        totals_by_key[key] = totals_by_key[key] or read_totals(key)
        reply[#reply + 1] = totals_by_key[key]
        reply[#reply + 1] = first
        reply[#reply + 1] = member_rank
        local member_values = read_values(rows, members)
        reply[#reply + 1] = member_values
        if kind == 'r' then
            local member_ranks = {}
            for index = 1, #member_values, 2 do
                member_ranks[#member_ranks + 1] = find_rank(ranks, member_values[index], member_values[index + 1])
            end
            reply[#reply + 1] = member_ranks
        end
    end
    position = first_of_next
end
return reply
