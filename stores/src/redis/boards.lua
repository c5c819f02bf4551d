#!lua flags=no-writes
-- Reads the record and, of the same moment, what is asked of cached boards (see board_rows.lua).
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with; then for each question the board's
-- field in the register, the length of the rest of its scores, a letter, and what that needs:
-- `s` (sums): nothing; `p` (page): offset and limit; `a` (around): member and how many; `m` (members): how
-- many, and these.
-- Answers the record (empty: missing), then for each question what the register says of the board (empty:
-- nothing) and, if it is filled: rows, sums, place of the first row, place of the member (-1: none), and
-- members with their values by turns.
local CHUNK = 4000
local answer = { redis.call('GET', KEYS[1]) or '' }
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

local at = 2
while at <= last do
    local value = redis.call('HGET', register, ARGV[at]) or ''
    local rest, want = tonumber(ARGV[at + 1]), ARGV[at + 2]
    local first_of_next = at + 3
    if want == 'p' or want == 'a' then
        first_of_next = at + 5
    elseif want == 'm' then
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
        elseif want == 'a' then
            local own = redis.call('HGET', rows, ARGV[at + 3])
            if own then
                local _, _, length, begin = string.match(own, '^(-?%d+):%d+:(-?%d+):(%d+):()')
                local score = string.sub(own, begin, begin + tonumber(length) - 1)
                found = redis.call('ZRANK', ranks, score .. ARGV[at + 3]) or -1
            end
            if found >= 0 then
                local around = tonumber(ARGV[at + 4])
                first = math.max(0, found - around)
                from, to = first, found + around
            end
        elseif want == 'm' then
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
        answer[#answer + 1] = redis.call('ZCARD', ranks)
        answer[#answer + 1] = redis.call('HGETALL', key .. ':m')
        answer[#answer + 1] = first
        answer[#answer + 1] = found
        answer[#answer + 1] = with_values(rows, members)
    end
    at = first_of_next
end
return answer
