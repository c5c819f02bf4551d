#!lua flags=allow-oom
-- Returns the least recently read boards, and removes boards that are no longer in the register.
--
-- KEYS[1]: the record, for its hash tag. ARGV: the key prefix, the maximum number of boards.
-- Returns their fields in the register.
local register, used = ARGV[1] .. 'boards', ARGV[1] .. 'boards:used'
local limit, boards = tonumber(ARGV[2]), {}
while #boards < limit do
    local fields = redis.call('ZRANGE', used, #boards, limit - 1)
    if #fields == 0 then
        break
    end
    for _, field in ipairs(fields) do
        if redis.call('HGET', register, field) then
            boards[#boards + 1] = field
        else
            redis.call('ZREM', used, field)
        end
    end
end
return boards
