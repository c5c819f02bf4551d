#!lua flags=no-writes
-- Reads the record and, of the same moment, what is asked of cached boards (see board_rows.lua).
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with; the mark of the record that the asker
-- has (empty: none); then for each question the board's field in the register, the length of the rest of
-- its scores, a letter, and what that needs: `s` (sums): nothing; `p` (page): offset and limit; `f`
-- (after): the score's first number, its rest with the member, and limit; `a` (around): member and how many; `m` (members) and `r` (their places too): how many, and these.
-- Answers the record (empty: missing; 1: the one that the asker has), then for each question what the
-- register says of the board (empty: nothing) and, if it is filled: sums (none: it is gone), place of the first row,
-- place of the member (-1: none), members with their values by turns, and places where they are wanted.
local CHUNK = 4000
local record = redis.call('GET', KEYS[1]) or ''
if ARGV[2] ~= '' and string.find(record, ARGV[2], 1, true) then
    record = 1
end
local answer = { record }
local prefix, last = ARGV[1], #ARGV
local register = prefix .. 'boards'

-- Members with their values, by turns.
local function with_values(rows, members)
    local found = {}
    for start = 1, #members, CHUNK do
        local some = { unpack(members, start, math.min(start + CHUNK - 1, #members)) }
        local values = redis.call('HMGET', rows, unpack(some))
        for index, member in ipairs(some) do
            if values[index] then
                found[#found + 1] = member
                found[#found + 1] = values[index]
            end
        end
    end
    return found
end

-- Where a row ranks.
local function place_of(ranks, member, value)
    local _, _, length, begin = string.match(value, '^(-?%d+):%d+:(-?%d+):(%d+):()')
    if not begin then
        return -1
    end
    local score = string.sub(value, begin, begin + tonumber(length) - 1)
    return redis.call('ZRANK', ranks, score .. member) or -1
end

-- Whether bytes sort after others: `<` of Lua goes by the server's locale.
local function is_after(one, other)
    for index = 1, math.min(#one, #other) do
        local left, right = string.byte(one, index), string.byte(other, index)
        if left ~= right then
            return left > right
        end
    end
    return #one > #other
end

-- How many rows rank at or before a number and, among those of the same number, a name.
local function count_up_to(ranks, number, name)
    local low, high = 0, redis.call('ZCARD', ranks)
    while low < high do
        local middle = math.floor((low + high) / 2)
        local row = redis.call('ZRANGE', ranks, middle, middle, 'WITHSCORES')
        local own = tonumber(row[2])
        if own > number or own == number and is_after(row[1], name) then
            high = middle
        else
            low = middle + 1
        end
    end
    return low
end

-- A board's sums; none if somebody has deleted one of its keys.
local function sums(key)
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

-- Questions that come together are mostly of one board.
local said_of, sums_of = {}, {}

local at = 3
while at <= last do
    local name = ARGV[at]
    local value = said_of[name] or redis.call('HGET', register, name) or ''
    said_of[name] = value
    local rest, want = tonumber(ARGV[at + 1]), ARGV[at + 2]
    local first_of_next = at + 3
    if want == 'p' or want == 'a' then
        first_of_next = at + 5
    elseif want == 'f' then
        first_of_next = at + 6
    elseif want == 'm' or want == 'r' then
        first_of_next = at + 4 + tonumber(ARGV[at + 3])
    end
    answer[#answer + 1] = value
    if string.sub(value, 1, 1) == 'r' then
        local key = prefix .. 'b:' .. string.match(value, '^r([^ ]+)')
        local ranks, rows = key .. ':z', key .. ':h'
        local first, found, from, to, members = 0, -1, 1, 0, {}
        if want == 'p' then
            first = tonumber(ARGV[at + 3])
            from, to = first, first + tonumber(ARGV[at + 4]) - 1
        elseif want == 'f' then
            first = count_up_to(ranks, tonumber(ARGV[at + 3]), ARGV[at + 4])
            from, to = first, first + tonumber(ARGV[at + 5]) - 1
        elseif want == 'a' then
            local own = redis.call('HGET', rows, ARGV[at + 3])
            if own then
                found = place_of(ranks, ARGV[at + 3], own)
            end
            if found >= 0 then
                local around = tonumber(ARGV[at + 4])
                first = math.max(0, found - around)
                from, to = first, found + around
            end
        elseif want == 'm' or want == 'r' then
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
        sums_of[key] = sums_of[key] or sums(key)
        answer[#answer + 1] = sums_of[key]
        answer[#answer + 1] = first
        answer[#answer + 1] = found
        local found_rows = with_values(rows, members)
        answer[#answer + 1] = found_rows
        if want == 'r' then
            local places = {}
            for index = 1, #found_rows, 2 do
                places[#places + 1] = place_of(ranks, found_rows[index], found_rows[index + 1])
            end
            answer[#answer + 1] = places
        end
    end
    at = first_of_next
end
return answer
