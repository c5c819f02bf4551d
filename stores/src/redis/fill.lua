-- Puts rows into a board that is being filled, as one of the steps of that.
--
-- KEYS[1]: the record, for its hash tag. ARGV: what all keys of the slot begin with, the board's field in
-- the register, its value there before this step and after it, the id, how many rows follow, and the
-- rows, each a member and a value. Answers 1, also if the step was taken before; 0 if the board does not
-- stand there: it is not being filled any more, a server has lost steps, or somebody has
-- deleted its keys.
local register = ARGV[1] .. 'boards'
local value = redis.call('HGET', register, ARGV[2])
if value == ARGV[4] then
    return 1
end
if value ~= ARGV[3] then
    return 0
end
check_board(ARGV[1], ARGV[5])
local _, _, sums = board_keys(ARGV[1], ARGV[5])
if not redis.call('HGET', sums, 'k') then
    return 0
end
put_rows(ARGV[1], ARGV[5], '0', '0', 6)
redis.call('HSET', register, ARGV[2], ARGV[4])
return 1
