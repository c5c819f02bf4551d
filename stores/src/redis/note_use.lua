#!lua flags=allow-oom
-- Notes that a board was read, if it is in the register as one that is filled: a note may come after the
-- board has gone, and nobody would take it away.
--
-- KEYS[1]: the record, for its hash tag. ARGV: what all keys of the slot begin with, the board's field in
-- the register, the moment in milliseconds.
-- Answers 1; 0 if nothing was noted.
local value = redis.call('HGET', ARGV[1] .. 'boards', ARGV[2])
if not value or string.sub(value, 1, 1) ~= 'r' then
    return 0
end
redis.call('ZADD', ARGV[1] .. 'boards:used', 'GT', ARGV[3], ARGV[2])
return 1
