-- Adds rows to a board that is being filled, as one step of the fill.
--
-- KEYS[1]: the record, for its hash tag. ARGV: the key prefix, the board's field in the register,
-- its value before and after this step, the id, and a list of rows, each a member and a value,
-- preceded by its length. Returns 1, also if the step was already done. Returns 0 if the board is
-- not at this step: it is no longer being filled, a failover has lost steps, or its keys were
-- deleted.
local register = ARGV[1] .. 'boards'
local value = redis.call('HGET', register, ARGV[2])
if value == ARGV[4] then
    return 1
end
if value ~= ARGV[3] then
    return 0
end
check_board(ARGV[1], ARGV[5])
local _, _, totals = board_keys(ARGV[1], ARGV[5])
if not redis.call('HGET', totals, 'k') then
    return 0
end
put_rows(ARGV[1], ARGV[5], '0', '0', 6)
redis.call('HSET', register, ARGV[2], ARGV[4])
return 1
