#!lua flags=allow-oom
-- Writes the record, if it is as it was seen. It is small, and letting go of epochs must go through
-- when memory is full.
--
-- KEYS[1]: the record. ARGV: the record as seen (empty: missing), the new one (empty: it is deleted).
-- Answers 1, or the present record (empty: missing), and then nothing was changed.
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
