-- Applies a micro-batch: replaces the record, and writes rows and cached boards, if the record is
-- as expected.
--
-- KEYS[1]: the record. ARGV, in this order; each list is preceded by its length:
-- - the expected record (empty: missing), the new record, the key prefix;
-- - the outbox, then the list of entries to append;
-- - the current epoch, the newest complete epoch, then the list of changed boards: id, and a list
--   of rows, each a member and its value (empty: removed);
-- - the list of live counts: hash, field, expected value (empty: missing), new value (empty:
--   deleted);
-- - the number of bytes at which a string of packed rows is full, then the list of their
--   containers: name, and a list of groups, each its key and the bytes to append;
-- - the list of strings to delete: container and key of the group;
-- - the smallest and largest number of chunks at which a hash is reported, then the list of
--   containers with chunks: name, and a list of groups, each its key, 1 if its present chunks are
--   deleted, and a list of fields and values;
-- - until the end, other containers: name, and a list of groups, each its key and a list of fields
--   and values.
--
-- Returns 1, or a list: 1, then container, key and number of chunks of each group that is reported
-- because its string is full (number 0) or its chunks have reached a limit. Returns the present
-- record (empty: missing) if it is not the expected one; then nothing was changed.
--
-- Redis does not roll back, so everything that can fail is checked before the first write: calls
-- raise errors for keys of a wrong type, and sums must fit in 64 bits. The types of strings are not
-- checked, because each check would cost a command. If an append fails, the earlier appends are
-- undone. Numbers of more than 15 digits remain strings, because Lua numbers are doubles.
--
-- The number of commands dominates the cost. A group of counts needs one command to read them and
-- one to write them.

-- Number of values that unpack can handle.
local UNPACK_MAX = 4000
-- The sum of two numbers of at most this many digits is exact.
local EXACT_DIGITS = 15
local record = redis.call('GET', KEYS[1]) or ''
if record ~= ARGV[1] then
    return record
end

local prefix, last = ARGV[3], #ARGV

-- Positions of the arguments. Calls like LLEN only check the type of a key.
local outbox, entries = prefix .. ARGV[4], tonumber(ARGV[5])
local first_entry, board_args = 6, 6 + entries
if entries > 0 then
    redis.call('LLEN', outbox)
end

-- Cached boards.
local epoch, covered, boards = ARGV[board_args], ARGV[board_args + 1], tonumber(ARGV[board_args + 2])
local first_container = board_args + 3
for _ = 1, boards do
    check_board(prefix, ARGV[first_container])
    first_container = first_container + 2 + 2 * tonumber(ARGV[first_container + 1])
end

-- Live counts.
local first_sum, sums = first_container + 1, tonumber(ARGV[first_container])
first_container = first_sum + 4 * sums
local last_sum = first_container - 1
for position = first_sum, last_sum, 4 do
    redis.call('HLEN', prefix .. ARGV[position])
end

-- Strings of packed rows.
local full_bytes, strings = tonumber(ARGV[first_container]), tonumber(ARGV[first_container + 1])
local first_string = first_container + 2
first_container = first_string
for _ = 1, strings do
    redis.call('ZCARD', prefix .. ARGV[first_container])
    first_container = first_container + 2 + 2 * tonumber(ARGV[first_container + 1])
end

-- Strings to delete, and chunks.
local first_deleted, deleted = first_container + 1, tonumber(ARGV[first_container])
local first_chunks = first_deleted + 2 * deleted
local crowded_from, crowded_to = tonumber(ARGV[first_chunks]), tonumber(ARGV[first_chunks + 1])
local chunk_containers, chunk_counts = tonumber(ARGV[first_chunks + 2]), {}
first_chunks = first_chunks + 3
first_container = first_chunks
for _ = 1, chunk_containers do
    local index, groups = prefix .. ARGV[first_container], tonumber(ARGV[first_container + 1])
    redis.call('ZCARD', index)
    first_container = first_container + 2
    for _ = 1, groups do
        chunk_counts[first_container] = redis.call('HLEN', index .. ':' .. ARGV[first_container])
        first_container = first_container + 3 + 2 * tonumber(ARGV[first_container + 2])
    end
end

-- Splits a 64-bit number into high * 10^9 + low.
local function split(text)
    local sign, digits = 1, text
    if string.sub(text, 1, 1) == '-' then
        sign, digits = -1, string.sub(text, 2)
    end
    return sign * (tonumber(string.sub(digits, 1, -10)) or 0), sign * tonumber(string.sub(digits, -9))
end

-- True if the sum of two 64-bit numbers fits in 64 bits.
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

-- Computes the new values of a group. Returns fields with their sums, fields with increments for
-- long numbers, and whether the group exists; or nil and an error.
local function sum_rows(key, from, rows)
    local sums, long, exists = {}, {}, false
    for start = 0, rows - 1, UNPACK_MAX do
        local fields = {}
        for row = start, math.min(start + UNPACK_MAX, rows) - 1 do
            fields[#fields + 1] = ARGV[from + 2 * row]
        end
        local values = redis.call('HMGET', key, unpack(fields))
        for index = 1, #fields do
            local value, increment = values[index], ARGV[from + 2 * (start + index - 1) + 1]
            local into, result = sums, increment
            if value then
                exists = true
                if #value > 20 or not string.find(value, '^%-?%d+$') then
                    return nil, 'NOTANUMBER ' .. key
                end
                if #value <= EXACT_DIGITS and #increment <= EXACT_DIGITS then
                    result = string.format('%.0f', tonumber(value) + tonumber(increment))
                elseif fits(value, increment) then
                    into = long
                else
                    return nil, 'OVERFLOW ' .. key
                end
            end
            into[#into + 1] = fields[index]
            into[#into + 1] = result
        end
    end
    return {sums = sums, long = long, exists = exists}
end

-- New values of each group, in the order of the arguments. Entries replace the present ones.
local new_groups, group_number = {}, 0
local position = first_container
while position <= last do
    local container, groups = ARGV[position], tonumber(ARGV[position + 1])
    local is_counted = string.sub(container, 1, 1) == 'd'
    redis.call('ZCARD', prefix .. container)
    position = position + 2
    for _ = 1, groups do
        local key, rows = prefix .. container .. ':' .. ARGV[position], tonumber(ARGV[position + 1])
        group_number = group_number + 1
        if is_counted then
            local group, error_text = sum_rows(key, position + 2, rows)
            if error_text then
                return redis.error_reply(error_text)
            end
            new_groups[group_number] = group
        else
            new_groups[group_number] = {exists = redis.call('HLEN', key) > 0}
        end
        position = position + 2 + 2 * rows
    end
end

-- Undoes the appends to the strings before a position in the arguments.
local function undo_appends(stop)
    local position = first_string
    while position < stop do
        local index, groups = prefix .. ARGV[position], tonumber(ARGV[position + 1])
        position = position + 2
        for _ = 1, groups do
            if position >= stop then
                return
            end
            local key = index .. ':' .. ARGV[position]
            local remaining_bytes = redis.call('STRLEN', key) - #ARGV[position + 1]
            if remaining_bytes > 0 then
                redis.call('SET', key, redis.call('GETRANGE', key, 0, remaining_bytes - 1))
            else
                redis.call('UNLINK', key)
                redis.call('ZREM', index, ARGV[position])
            end
            position = position + 2
        end
    end
end

-- Adds groups to the index of a container. The list alternates 0 and group.
local function index_groups(index, groups)
    for start = 1, #groups, UNPACK_MAX do
        redis.call('ZADD', index, unpack(groups, start, math.min(start + UNPACK_MAX - 1, #groups)))
    end
end

local reply = {1}
position = first_string
for _ = 1, strings do
    local index, groups, unindexed = prefix .. ARGV[position], tonumber(ARGV[position + 1]), {}
    local container = ARGV[position]
    position = position + 2
    for _ = 1, groups do
        local length = redis.pcall('APPEND', index .. ':' .. ARGV[position], ARGV[position + 1])
        if type(length) ~= 'number' then
            undo_appends(position)
            return length
        end
        if length == #ARGV[position + 1] then
            unindexed[#unindexed + 1] = '0'
            unindexed[#unindexed + 1] = ARGV[position]
        end
        if length >= full_bytes then
            reply[#reply + 1] = container
            reply[#reply + 1] = ARGV[position]
            reply[#reply + 1] = 0
        end
        position = position + 2
    end
    index_groups(index, unindexed)
end

-- Sets fields of a hash from a range of a list.
local function set_fields(key, list, from, to)
    for start = from, to, UNPACK_MAX do
        redis.call('HSET', key, unpack(list, start, math.min(start + UNPACK_MAX - 1, to)))
    end
end

for position = first_deleted, first_deleted + 2 * deleted - 1, 2 do
    redis.call('UNLINK', prefix .. ARGV[position] .. ':' .. ARGV[position + 1])
end

-- True if a hash reaches a number of chunks at which it is reported.
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

position = first_chunks
for _ = 1, chunk_containers do
    local container, groups, unindexed = ARGV[position], tonumber(ARGV[position + 1]), {}
    local index = prefix .. container
    position = position + 2
    for _ = 1, groups do
        local group, chunks, before = ARGV[position], tonumber(ARGV[position + 2]), chunk_counts[position]
        local key = index .. ':' .. group
        if before == 0 then
            unindexed[#unindexed + 1] = '0'
            unindexed[#unindexed + 1] = group
        end
        if ARGV[position + 1] == '1' then
            redis.call('UNLINK', key)
        elseif is_crowded(before, before + chunks) then
            reply[#reply + 1] = container
            reply[#reply + 1] = group
            reply[#reply + 1] = before + chunks
        end
        set_fields(key, ARGV, position + 3, position + 2 + 2 * chunks)
        position = position + 3 + 2 * chunks
    end
    index_groups(index, unindexed)
end

position = board_args + 3
for _ = 1, boards do
    position = put_rows(prefix, ARGV[position], epoch, covered, position + 1)
end
for position = first_sum, last_sum, 4 do
    local key, field = prefix .. ARGV[position], ARGV[position + 1]
    local stored = redis.call('HGET', key, field) or ''
    if stored == ARGV[position + 2] and ARGV[position + 3] ~= '' then
        redis.call('HSET', key, field, ARGV[position + 3])
    elseif stored ~= '' then
        redis.call('HDEL', key, field)
    end
end
group_number = 0
position = first_container
while position <= last do
    local container, groups = ARGV[position], tonumber(ARGV[position + 1])
    local unindexed = {}
    position = position + 2
    for _ = 1, groups do
        local key, rows = prefix .. container .. ':' .. ARGV[position], tonumber(ARGV[position + 1])
        group_number = group_number + 1
        local group = new_groups[group_number]
        -- Adding an existing group to the index again would change nothing.
        if not group.exists then
            unindexed[#unindexed + 1] = '0'
            unindexed[#unindexed + 1] = ARGV[position]
        end
        local from, to = position + 2, position + 1 + 2 * rows
        if group.sums then
            set_fields(key, group.sums, 1, #group.sums)
            for row = 1, #group.long, 2 do
                redis.call('HINCRBY', key, group.long[row], group.long[row + 1])
            end
        else
            set_fields(key, ARGV, from, to)
        end
        position = to + 1
    end
    index_groups(prefix .. container, unindexed)
end
for start = first_entry, board_args - 1, UNPACK_MAX do
    redis.call('RPUSH', outbox, unpack(ARGV, start, math.min(start + UNPACK_MAX - 1, board_args - 1)))
end
redis.call('SET', KEYS[1], ARGV[2])
return #reply > 1 and reply or 1
