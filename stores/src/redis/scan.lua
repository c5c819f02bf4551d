#!lua flags=no-writes
-- Reads the first groups of a place in the order of their keys.
--
-- KEYS[1]: the record. ARGV: what all keys of the slot begin with, the place, where to begin (as
-- ZRANGEBYLEX takes it), how many groups and how many rows at most.
-- Answers the record (empty: missing), 1 if these are all groups of the place and else 0, and by turns a
-- group and its fields and values; the number of its rows if these were too many by themselves.
local record = redis.call('GET', KEYS[1]) or ''
local index = ARGV[1] .. ARGV[2]
local groups = redis.call('ZRANGEBYLEX', index, ARGV[3], '+', 'LIMIT', '0', ARGV[4])
local rows_max, sum = tonumber(ARGV[5]), 0
local answer = { record, #groups < tonumber(ARGV[4]) and 1 or 0 }
for _, group in ipairs(groups) do
    local key = index .. ':' .. group
    local rows = redis.call('HLEN', key)
    if rows > rows_max then
        answer[#answer + 1] = group
        answer[#answer + 1] = rows
    elseif sum + rows > rows_max then
        answer[2] = 0
        return answer
    else
        sum = sum + rows
        answer[#answer + 1] = group
        answer[#answer + 1] = redis.call('HGETALL', key)
    end
end
return answer
