#!lua flags=allow-oom
-- Replaces the record if it is as expected. It is allowed when memory is full, because the record
-- is small and pruning must succeed.
--
-- KEYS[1]: the record. ARGV: the expected record (empty: missing), the new one (empty: deleted).
-- Returns 1, or the present record (empty: missing) if it is not the expected one; then nothing was
-- changed.
local record = redis.call('GET', KEYS[1]) or ''
if record ~= ARGV[1] then
    return record
end
if ARGV[2] == '' then
    redis.call('UNLINK', KEYS[1])
else
    redis.call('SET', KEYS[1], ARGV[2])
end
return 1
