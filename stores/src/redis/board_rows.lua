#!lua
-- Rows of cached boards. A board ID has three keys:
-- - `b:ID:z`, a sorted set: score is the score's first number, member is the rest of the score and
--   the member;
-- - `b:ID:h`, a hash from member to value;
-- - `b:ID:m`, a hash of totals: `w` the sum of weights, `eEPOCH` the number of rows of an epoch,
--   `c` the epoch of the last change, `k` a mark that the keys have existed since filling began (if
--   it is missing, another client has deleted them and the board is invalid), `f` the last epoch
--   whose rows are counted under `e0`, with all earlier ones.
--
-- A value is `NUMBER:EPOCH:WEIGHT:LENGTH:REST…PAYLOAD`: the score's first number, the row's epoch
-- (0: from the batch layer), its weight, and the length of the rest of the score, which follows.

-- Above this number of epochs, those up to the newest complete run are counted together.
local EPOCHS_MAX = 16

local function board_keys(prefix, id)
    local key = prefix .. 'b:' .. id
    return key .. ':z', key .. ':h', key .. ':m'
end

-- Raises an error for keys of a wrong type.
local function check_board(prefix, id)
    local ranks, rows, totals = board_keys(prefix, id)
    redis.call('ZCARD', ranks)
    redis.call('HLEN', rows)
    redis.call('HLEN', totals)
end

local function parse_value(value)
    local number, epoch, weight, length, position = string.match(value, '^(-?%d+):(%d+):(-?%d+):(%d+):()')
    if not position then
        -- Damaged; the comparison of boards detects it.
        return '0', 0, 0, ''
    end
    local rest = string.sub(value, position, position + tonumber(length) - 1)
    return number, tonumber(epoch), tonumber(weight), rest
end

-- Writes rows to a board. They begin at ARGV[position] with their number. `changed` is the epoch of
-- the change (0: none). Returns the position of the next argument.
local function put_rows(prefix, id, changed, covered, position)
    local ranks, rows, totals = board_keys(prefix, id)
    local count = tonumber(ARGV[position])
    if not redis.call('HGET', totals, 'k') then
        return position + 1 + 2 * count
    end
    local folded = tonumber(redis.call('HGET', totals, 'f') or '0')
    local weights, epochs, is_changed = 0, {}, false
    local function add_to_epoch(epoch, increment)
        if epoch <= folded then
            epoch = 0
        end
        epochs[epoch] = (epochs[epoch] or 0) + increment
    end
    for index = position + 1, position + 2 * count, 2 do
        local member, value = ARGV[index], ARGV[index + 1]
        local old = redis.call('HGET', rows, member)
        local old_rest
        if old then
            local _, epoch, weight, rest = parse_value(old)
            old_rest = rest
            add_to_epoch(epoch, -1)
            weights = weights - weight
        end
        if value ~= '' then
            local number, epoch, weight, rest = parse_value(value)
            if old_rest and old_rest ~= rest then
                redis.call('ZREM', ranks, old_rest .. member)
            end
            redis.call('ZADD', ranks, number, rest .. member)
            redis.call('HSET', rows, member, value)
            add_to_epoch(epoch, 1)
            weights = weights + weight
        elseif old then
            redis.call('ZREM', ranks, old_rest .. member)
            redis.call('HDEL', rows, member)
        end
        is_changed = is_changed or old or value ~= ''
    end
    if not is_changed then
        return position + 1 + 2 * count
    end
    for epoch, increment in pairs(epochs) do
        if increment ~= 0 and redis.call('HINCRBY', totals, 'e' .. string.format('%.0f', epoch), increment) == 0 then
            redis.call('HDEL', totals, 'e' .. string.format('%.0f', epoch))
        end
    end
    if weights ~= 0 then
        redis.call('HINCRBY', totals, 'w', string.format('%.0f', weights))
    end
    if changed ~= '0' then
        redis.call('HSET', totals, 'c', changed)
    end
    if redis.call('HLEN', totals) > EPOCHS_MAX and tonumber(covered) > folded then
        local all, batch = redis.call('HGETALL', totals), 0
        for index = 1, #all, 2 do
            local epoch = tonumber(string.match(all[index], '^e(%d+)$') or '-1')
            if epoch > 0 and epoch <= tonumber(covered) then
                batch = batch + tonumber(all[index + 1])
                redis.call('HDEL', totals, all[index])
            end
        end
        redis.call('HINCRBY', totals, 'e0', string.format('%.0f', batch))
        redis.call('HSET', totals, 'f', covered)
    end
    return position + 1 + 2 * count
end
