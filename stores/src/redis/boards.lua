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
local CHUNK = 4000
local record = redis.call('GET', KEYS[1]) or ''
if ARGV[2] ~= '' and string.find(record, ARGV[2], 1, true) then
    record = 1
end
local answer = { record }
local prefix, last = ARGV[1], #ARGV
local register = prefix .. 'boards'

-- Returns members with their values, alternating.
local function with_values(rows, members)
    local found = {}
    for start = 1, #members, CHUNK do
        local chunk = { unpack(members, start, math.min(start + CHUNK - 1, #members)) }
        local values = redis.call('HMGET', rows, unpack(chunk))
        for index, member in ipairs(chunk) do
            if values[index] then
                found[#found + 1] = member
                found[#found + 1] = values[index]
            end
        end
    end
    return found
end

-- Returns the rank of a row.
local function rank_of(ranks, member, value)
    local _, _, length, begin = string.match(value, '^(-?%d+):%d+:(-?%d+):(%d+):()')
    if not begin then
        return -1
    end
    local score = string.sub(value, begin, begin + tonumber(length) - 1)
    return redis.call('ZRANK', ranks, score .. member) or -1
end

-- True if one byte string sorts after another. Lua's `<` depends on the server's locale.
local function sorts_after(one, other)
    for index = 1, math.min(#one, #other) do
        local left, right = string.byte(one, index), string.byte(other, index)
        if left ~= right then
            return left > right
        end
    end
    return #one > #other
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
local function totals(key)
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
local registered, totals_of = {}, {}

local at = 3
while at <= last do
    local name = ARGV[at]
    local value = registered[name] or redis.call('HGET', register, name) or ''
    registered[name] = value
    local rest, kind = tonumber(ARGV[at + 1]), ARGV[at + 2]
    local first_of_next = at + 3
    if kind == 'p' or kind == 'a' then
        first_of_next = at + 5
    elseif kind == 'f' then
        first_of_next = at + 6
    elseif kind == 'm' or kind == 'r' then
        first_of_next = at + 4 + tonumber(ARGV[at + 3])
    end
    answer[#answer + 1] = value
    if string.sub(value, 1, 1) == 'r' then
        local key = prefix .. 'b:' .. string.match(value, '^r([^ ]+)')
        local ranks, rows = key .. ':z', key .. ':h'
        local first, found, from, to, members = 0, -1, 1, 0, {}
        if kind == 'p' then
            first = tonumber(ARGV[at + 3])
            from, to = first, first + tonumber(ARGV[at + 4]) - 1
        elseif kind == 'f' then
            first = count_up_to(ranks, tonumber(ARGV[at + 3]), ARGV[at + 4])
            from, to = first, first + tonumber(ARGV[at + 5]) - 1
        elseif kind == 'a' then
            local member_value = redis.call('HGET', rows, ARGV[at + 3])
            if member_value then
                found = rank_of(ranks, ARGV[at + 3], member_value)
            end
            if found >= 0 then
                local around = tonumber(ARGV[at + 4])
                first = math.max(0, found - around)
                from, to = first, found + around
            end
        elseif kind == 'm' or kind == 'r' then
            for index = at + 4, first_of_next - 1 do
                members[#members + 1] = ARGV[index]
            end
        end
        if from <= to then
            members = redis.call('ZRANGE', ranks, from, to)
            for index, ranked in ipairs(members) do
                members[index] = string.sub(ranked, rest + 1)
            end
        end
        totals_of[key] = totals_of[key] or totals(key)
        answer[#answer + 1] = totals_of[key]
        answer[#answer + 1] = first
        answer[#answer + 1] = found
        local found_rows = with_values(rows, members)
        answer[#answer + 1] = found_rows
        if kind == 'r' then
            local found_ranks = {}
            for index = 1, #found_rows, 2 do
                found_ranks[#found_ranks + 1] = rank_of(ranks, found_rows[index], found_rows[index + 1])
            end
            answer[#answer + 1] = found_ranks
        end
    end
    at = first_of_next
end
return answer
