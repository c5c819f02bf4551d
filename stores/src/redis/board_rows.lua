#!lua
-- Rows of cached boards. A board ID has three keys: `b:ID:z`, a sorted set by the score's first number,
-- of the rest of the score and the member; `b:ID:h`, a hash from member to value; `b:ID:m`, a hash of
-- sums: `w` the weights, `eEPOCH` the rows of an epoch, `c` the last epoch of a change, `k`
-- the mark that the keys are there since filling began (else somebody has deleted them, and the board is
-- gone), and `f`: the rows
-- of this epoch and of those before it are counted under `e0`.
--
-- A value is `NUMBER:EPOCH:WEIGHT:LENGTH:REST…PAYLOAD`: the score's first number, the row's epoch (0: of
-- the batch layer) and weight, and how long the rest of the score is that follows.

-- More epochs than this are counted apart only while they are newer than the newest run.
local EPOCHS = 16

local function board_keys(prefix, id)
    local key = prefix .. 'b:' .. id
    return key .. ':z', key .. ':h', key .. ':m'
end

-- Raises for keys of a wrong type.
local function check_board(prefix, id)
    local ranks, rows, sums = board_keys(prefix, id)
    redis.call('ZCARD', ranks)
    redis.call('HLEN', rows)
    redis.call('HLEN', sums)
end

local function parse(value)
    local number, epoch, weight, length, at = string.match(value, '^(-?%d+):(%d+):(-?%d+):(%d+):()')
    if not at then
        -- Damaged: who compares boards finds that this one is not right.
        return '0', 0, 0, ''
    end
    local rest = string.sub(value, at, at + tonumber(length) - 1)
    return number, tonumber(epoch), tonumber(weight), rest
end

-- Puts rows that begin at ARGV[at], their number first, into a board, as changes of an epoch (0: none
-- is noted); answers where ARGV goes on.
local function put_rows(prefix, id, changed, covered, at)
    local ranks, rows, sums = board_keys(prefix, id)
    local count = tonumber(ARGV[at])
    if not redis.call('HGET', sums, 'k') then
        return at + 1 + 2 * count
    end
    local folded = tonumber(redis.call('HGET', sums, 'f') or '0')
    local weights, epochs, is_changed = 0, {}, false
    local function note(epoch, more)
        if epoch <= folded then
            epoch = 0
        end
        epochs[epoch] = (epochs[epoch] or 0) + more
    end
    for index = at + 1, at + 2 * count, 2 do
        local member, value = ARGV[index], ARGV[index + 1]
        local old = redis.call('HGET', rows, member)
        local old_rest
        if old then
            local _, epoch, weight, rest = parse(old)
            old_rest = rest
            note(epoch, -1)
            weights = weights - weight
        end
        if value ~= '' then
            local number, epoch, weight, rest = parse(value)
            if old_rest and old_rest ~= rest then
                redis.call('ZREM', ranks, old_rest .. member)
            end
            redis.call('ZADD', ranks, number, rest .. member)
            redis.call('HSET', rows, member, value)
            note(epoch, 1)
            weights = weights + weight
        elseif old then
            redis.call('ZREM', ranks, old_rest .. member)
            redis.call('HDEL', rows, member)
        end
        is_changed = is_changed or old or value ~= ''
    end
    if not is_changed then
        return at + 1 + 2 * count
    end
    for epoch, more in pairs(epochs) do
        if more ~= 0 and redis.call('HINCRBY', sums, 'e' .. string.format('%.0f', epoch), more) == 0 then
            redis.call('HDEL', sums, 'e' .. string.format('%.0f', epoch))
        end
    end
    if weights ~= 0 then
        redis.call('HINCRBY', sums, 'w', string.format('%.0f', weights))
    end
    if changed ~= '0' then
        redis.call('HSET', sums, 'c', changed)
    end
    if redis.call('HLEN', sums) > EPOCHS and tonumber(covered) > folded then
        local all, batch = redis.call('HGETALL', sums), 0
        for index = 1, #all, 2 do
            local epoch = tonumber(string.match(all[index], '^e(%d+)$') or '-1')
            if epoch > 0 and epoch <= tonumber(covered) then
                batch = batch + tonumber(all[index + 1])
                redis.call('HDEL', sums, all[index])
            end
        end
        redis.call('HINCRBY', sums, 'e0', string.format('%.0f', batch))
        redis.call('HSET', sums, 'f', covered)
    end
    return at + 1 + 2 * count
end
