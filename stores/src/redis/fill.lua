-- Puts rows into a board that is being filled.
--
-- KEYS[1]: the record, for its hash tag. ARGV: what all keys of the slot begin with, the board's field in
-- the register and its value there, the id, how many rows follow, and the rows, each a member and a
-- value. Answers 1, or 0 if the board is not being filled any more.
if redis.call('HGET', ARGV[1] .. 'boards', ARGV[2]) ~= ARGV[3] then
    return 0
end
check_board(ARGV[1], ARGV[4])
put_rows(ARGV[1], ARGV[4], '0', '0', 5)
return 1
