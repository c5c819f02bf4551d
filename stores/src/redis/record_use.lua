#!lua flags=allow-oom
-- Records that a board was read, if the register lists it as filled. A late record for a dropped
-- board would never be removed.
--
-- KEYS[1]: the record, for its hash tag. ARGV: the key prefix, the board's field in the register,
-- the time in milliseconds. Returns 1; 0 if nothing was recorded.
local value = redis.call('HGET', ARGV[1] .. 'boards', ARGV[2])
if not value or string.sub(value, 1, 1) ~= 'r' then
    return 0
end
redis.call('ZADD', ARGV[1] .. 'boards:used', 'GT', ARGV[3], ARGV[2])
return 1
