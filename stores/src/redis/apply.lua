-- Applies a micro-batch: writes the record, the parts and the rows of cached boards, if the record is
-- as it was seen.
--
-- KEYS[1]: the record. ARGV: the record as seen (empty: missing), the new one, what all keys of the
-- slot begin with; the outbox, how many entries are appended to it, and these; the epoch that is filled,
-- the newest complete one, how many cached boards change, and for each of these its id, how many rows
-- follow, and the rows, each a member and its value (empty: it goes); how many sums of live states may
-- change, and for each of these the hash that it is in, its field there, the sum that is believed to be
-- there (empty: none) and the one that takes its place (empty: none); after how many bytes a string of packed
-- rows is full, how many places of such there are, and for each of these its name and how many groups follow;
-- for each group its key and what is appended to its string; how many strings go, and for each of these its place and its
-- key; from how many chunks up to how many hashes of as many are told of, how many places of chunks there are, and for each
-- of these its name and how many groups follow; for each group its key, 1 if the chunks that are there go, how many chunks
-- follow, and these, each a field and a value; then for each other place its name and how many
-- groups follow; for each group its key, how many rows follow, and the rows, each a field and a value.
-- Answers 1, or a list: 1, and then by turns place, key and number of chunks of each group whose string is full (0), or which
-- has come to so many chunks or to twice as many, and so on; or the present record (empty: missing), and then nothing was changed.
--
-- Redis does not roll back, so everything that can go wrong is looked at before the first write:
-- calls raise for keys of a wrong type, and sums are checked to fit in 64 bits. Strings alone are not asked for
-- their type, which would be a call for each: where one can't be appended to, what was appended is taken away
-- again. Numbers of more than 15 digits stay texts, since those of Lua are doubles.
--
-- What costs is the number of calls, whatever each of them does: a group whose rows are counts takes one
-- to read them and one to write them.

-- Few enough values for unpack.
local CHUNK = 4000
-- The sum of two numbers that are no longer is exact.
local SHORT = 15
local record = redis.call('GET', KEYS[1]) or ''
if record ~= ARGV[1] then
    return record
end

local prefix, last = ARGV[3], #ARGV

-- What is appended to the outbox stands before the places.
local outbox, entries = prefix .. ARGV[4], tonumber(ARGV[5])
local first_entry, of_boards = 6, 6 + entries
if entries > 0 then
    redis.call('LLEN', outbox)
end

-- Then come cached boards.
local epoch, covered, boards = ARGV[of_boards], ARGV[of_boards + 1], tonumber(ARGV[of_boards + 2])
local first_place = of_boards + 3
for _ = 1, boards do
    check_board(prefix, ARGV[first_place])
    first_place = first_place + 2 + 2 * tonumber(ARGV[first_place + 1])
end

-- And sums.
local first_sum, sums = first_place + 1, tonumber(ARGV[first_place])
first_place = first_sum + 4 * sums
local last_sum = first_place - 1
for at = first_sum, last_sum, 4 do
    redis.call('HLEN', prefix .. ARGV[at])
end

-- And strings of packed rows.
local full_bytes, strings = tonumber(ARGV[first_place]), tonumber(ARGV[first_place + 1])
local first_string = first_place + 2
first_place = first_string
for _ = 1, strings do
    redis.call('ZCARD', prefix .. ARGV[first_place])
    first_place = first_place + 2 + 2 * tonumber(ARGV[first_place + 1])
end

-- And strings that go, and chunks.
local first_emptied, emptied = first_place + 1, tonumber(ARGV[first_place])
local first_chunks = first_emptied + 2 * emptied
local crowded_from, crowded_to = tonumber(ARGV[first_chunks]), tonumber(ARGV[first_chunks + 1])
local chunk_places, held = tonumber(ARGV[first_chunks + 2]), {}
first_chunks = first_chunks + 3
first_place = first_chunks
for _ = 1, chunk_places do
    local index, groups = prefix .. ARGV[first_place], tonumber(ARGV[first_place + 1])
    redis.call('ZCARD', index)
    first_place = first_place + 2
    for _ = 1, groups do
        held[first_place] = redis.call('HLEN', index .. ':' .. ARGV[first_place])
        first_place = first_place + 3 + 2 * tonumber(ARGV[first_place + 2])
    end
end

-- A number of 64 bits as high * 10^9 + low.
local function split(text)
    local sign, digits = 1, text
    if string.sub(text, 1, 1) == '-' then
        sign, digits = -1, string.sub(text, 2)
    end
    return sign * (tonumber(string.sub(digits, 1, -10)) or 0), sign * tonumber(string.sub(digits, -9))
end

-- Whether the sum of two numbers of 64 bits is one.
local function fits(a, b)
    if #a <= 18 and #b <= 18 then
        return true
    end
    local a_high, a_low = split(a)
    local b_high, b_low = split(b)
    local low = a_low + b_low
    local carry = math.floor(low / 1000000000)
    local high = a_high + b_high + carry
    low = low - carry * 1000000000
    if high >= 9223372036 then
        return high == 9223372036 and low <= 854775807
    end
    if high <= -9223372037 then
        return high == -9223372037 and low >= 145224192
    end
    return true
end

-- What becomes of a group to which these rows are added: fields and their sums, fields with what is added to them
-- where these are long numbers, and whether one of them is there already; or else what is wrong.
local function added(key, from, rows)
    local sums, long, is_there = {}, {}, false
    for start = 0, rows - 1, CHUNK do
        local fields = {}
        for row = start, math.min(start + CHUNK, rows) - 1 do
            fields[#fields + 1] = ARGV[from + 2 * row]
        end
        local values = redis.call('HMGET', key, unpack(fields))
        for index = 1, #fields do
            local value, more = values[index], ARGV[from + 2 * (start + index - 1) + 1]
            local into, result = sums, more
            if value then
                is_there = true
                if #value > 20 or not string.find(value, '^%-?%d+$') then
                    return nil, 'NOTANUMBER ' .. key
                end
                if #value <= SHORT and #more <= SHORT then
                    result = string.format('%.0f', tonumber(value) + tonumber(more))
                elseif fits(value, more) then
                    into = long
                else
                    return nil, 'OVERFLOW ' .. key
                end
            end
            into[#into + 1] = fields[index]
            into[#into + 1] = result
        end
    end
    return {sums = sums, long = long, is_there = is_there}
end

-- By place and group in their order: what becomes of it. States take the place of what is there.
local become, group_number = {}, 0
local at = first_place
while at <= last do
    local place, groups = ARGV[at], tonumber(ARGV[at + 1])
    local is_counted = string.sub(place, 1, 1) == 'd'
    redis.call('ZCARD', prefix .. place)
    at = at + 2
    for _ = 1, groups do
        local key, rows = prefix .. place .. ':' .. ARGV[at], tonumber(ARGV[at + 1])
        group_number = group_number + 1
        if is_counted then
            local group, wrong = added(key, at + 2, rows)
            if wrong then
                return redis.error_reply(wrong)
            end
            become[group_number] = group
        else
            become[group_number] = {is_there = redis.call('HLEN', key) > 0}
        end
        at = at + 2 + 2 * rows
    end
end

-- Takes away what was appended to the strings before a place among the arguments.
local function take_away(stop)
    local at = first_string
    while at < stop do
        local index, groups = prefix .. ARGV[at], tonumber(ARGV[at + 1])
        at = at + 2
        for _ = 1, groups do
            if at >= stop then
                return
            end
            local key = index .. ':' .. ARGV[at]
            local left = redis.call('STRLEN', key) - #ARGV[at + 1]
            if left > 0 then
                redis.call('SET', key, redis.call('GETRANGE', key, 0, left - 1))
            else
                redis.call('UNLINK', key)
                redis.call('ZREM', index, ARGV[at])
            end
            at = at + 2
        end
    end
end

-- Names groups of a place: by turns 0 and a group.
local function name_groups(index, groups)
    for start = 1, #groups, CHUNK do
        redis.call('ZADD', index, unpack(groups, start, math.min(start + CHUNK - 1, #groups)))
    end
end

local answer = {1}
at = first_string
for _ = 1, strings do
    local index, groups, fresh = prefix .. ARGV[at], tonumber(ARGV[at + 1]), {}
    local place = ARGV[at]
    at = at + 2
    for _ = 1, groups do
        local length = redis.pcall('APPEND', index .. ':' .. ARGV[at], ARGV[at + 1])
        if type(length) ~= 'number' then
            take_away(at)
            return length
        end
        if length == #ARGV[at + 1] then
            fresh[#fresh + 1] = '0'
            fresh[#fresh + 1] = ARGV[at]
        end
        if length >= full_bytes then
            answer[#answer + 1] = place
            answer[#answer + 1] = ARGV[at]
            answer[#answer + 1] = 0
        end
        at = at + 2
    end
    name_groups(index, fresh)
end

-- Sets fields of a hash: those of a list from one place to another.
local function set(key, list, from, to)
    for start = from, to, CHUNK do
        redis.call('HSET', key, unpack(list, start, math.min(start + CHUNK - 1, to)))
    end
end

for at = first_emptied, first_emptied + 2 * emptied - 1, 2 do
    redis.call('UNLINK', prefix .. ARGV[at] .. ':' .. ARGV[at + 1])
end

-- Whether a hash comes to so many chunks that it is to be told of.
local function is_crowded(before, after)
    local count = crowded_from
    while count <= after and count <= crowded_to do
        if before < count then
            return true
        end
        count = 2 * count
    end
    return false
end

at = first_chunks
for _ = 1, chunk_places do
    local place, groups, fresh = ARGV[at], tonumber(ARGV[at + 1]), {}
    local index = prefix .. place
    at = at + 2
    for _ = 1, groups do
        local group, chunks, before = ARGV[at], tonumber(ARGV[at + 2]), held[at]
        local key = index .. ':' .. group
        if before == 0 then
            fresh[#fresh + 1] = '0'
            fresh[#fresh + 1] = group
        end
        if ARGV[at + 1] == '1' then
            redis.call('UNLINK', key)
        elseif is_crowded(before, before + chunks) then
            answer[#answer + 1] = place
            answer[#answer + 1] = group
            answer[#answer + 1] = before + chunks
        end
        set(key, ARGV, at + 3, at + 2 + 2 * chunks)
        at = at + 3 + 2 * chunks
    end
    name_groups(index, fresh)
end

at = of_boards + 3
for _ = 1, boards do
    at = put_rows(prefix, ARGV[at], epoch, covered, at + 1)
end
for at = first_sum, last_sum, 4 do
    local key, field = prefix .. ARGV[at], ARGV[at + 1]
    local there = redis.call('HGET', key, field) or ''
    if there == ARGV[at + 2] and ARGV[at + 3] ~= '' then
        redis.call('HSET', key, field, ARGV[at + 3])
    elseif there ~= '' then
        redis.call('HDEL', key, field)
    end
end
group_number = 0
at = first_place
while at <= last do
    local place, groups = ARGV[at], tonumber(ARGV[at + 1])
    local fresh = {}
    at = at + 2
    for _ = 1, groups do
        local key, rows = prefix .. place .. ':' .. ARGV[at], tonumber(ARGV[at + 1])
        group_number = group_number + 1
        local group = become[group_number]
        -- A group of which other rows are there is named once more, which changes nothing.
        if not group.is_there then
            fresh[#fresh + 1] = '0'
            fresh[#fresh + 1] = ARGV[at]
        end
        local from, to = at + 2, at + 1 + 2 * rows
        if group.sums then
            set(key, group.sums, 1, #group.sums)
            for row = 1, #group.long, 2 do
                redis.call('HINCRBY', key, group.long[row], group.long[row + 1])
            end
        else
            set(key, ARGV, from, to)
        end
        at = to + 1
    end
    name_groups(prefix .. place, fresh)
end
for start = first_entry, of_boards - 1, CHUNK do
    redis.call('RPUSH', outbox, unpack(ARGV, start, math.min(start + CHUNK - 1, of_boards - 1)))
end
redis.call('SET', KEYS[1], ARGV[2])
return #answer > 1 and answer or 1
