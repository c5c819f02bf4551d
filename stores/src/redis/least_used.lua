#!lua flags=allow-oom
-- The boards that were read least recently. Those that are not in the register are taken out on the way.
--
-- KEYS[1]: the record, for its hash tag. ARGV: what all keys of the slot begin with, how many at most.
-- Answers their fields in the register.
local register, used = ARGV[1] .. 'boards', ARGV[1] .. 'boards:used'
local limit, found = tonumber(ARGV[2]), {}
while #found < limit do
    local fields = redis.call('ZRANGE', used, #found, limit - 1)
    if #fields == 0 then
        break
    end
    for _, field in ipairs(fields) do
        if redis.call('HGET', register, field) then
            found[#found + 1] = field
        else
            redis.call('ZREM', used, field)
        end
    end
end
return found
