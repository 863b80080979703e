#!lua flags=allow-oom
-- lease(now_ms; branch, nonce, number, step, count, oldest_allowed, wait_ms, order, on_stale, max_stale, max_bytes,
--       max_group_bytes)
-- KEYS: run cards open in_flight sampling waiting ready leased taken discarded trash commons reasons tokens hints
-- INCLUDE: tokens moves
-- `count` groups of ready -> leased at this step, all or none. The same step again: the same groups.
-- Below oldest_allowed: ready -> waiting or discarded. wait_ms > 0: waits so long for last-chance groups in flight.
-- Returns {status, branch, trained, now, {ordinal, effective, card, ...}, {ordinal, effective, outcome, card, ...},
--          {ordinal, age, worker, ...} of those waited for, ready, in flight, waiting, bytes refused, last hint, {trash}}.
local number, step, count = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local oldest_allowed, wait_ms, order, on_stale = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10]
local max_bytes, max_group_bytes = tonumber(ARGV[12]), tonumber(ARGV[13])
local now, status = now_ms(), fence(tonumber(ARGV[2]), ARGV[3])
if status == "ok" and number < run.trained then status = "fenced" end
if status ~= "ok" then return { status, run.branch, run.trained, now } end
move_to(number)

local left = {}
if on_stale ~= "mask" then
  local below = redis.call("ZRANGE", K.ready, "-inf", string.format("(%d", oldest_allowed), "BYSCORE", "WITHSCORES")
  for i = 1, #below, 2 do
    local o, card = below[i], redis.call("HGET", K.cards, below[i])
    local outcome = drop_stale(o, load_card(o), on_stale, tonumber(ARGV[11]))
    left[#left + 1], left[#left + 2], left[#left + 3], left[#left + 4] = tonumber(o), tonumber(below[i + 1]), outcome, card
  end
end
if #left > 0 then
  write_tokens()
  hint("room")
end

local have = redis.call("ZRANGE", K.leased, step, step, "BYSCORE")
local want = count - #have
local chosen = {}
if want > 0 then
  chosen = redis.call("ZRANGE", order == "oldest" and K.ready or K.open, 0, want - 1)
  if order ~= "oldest" then -- the next ordinals may not be ready
    for _, o in ipairs(chosen) do
      if not redis.call("ZSCORE", K.ready, o) then chosen = {} break end
    end
  end
end
if #chosen < math.max(want, 0) then status = "short" end

local held_by = {}
if status == "ok" and want > 0 and order == "oldest" then
  local ready_last = redis.call("ZCOUNT", K.ready, oldest_allowed, oldest_allowed)
  local flying = redis.call("ZRANGE", K.sampling, oldest_allowed, oldest_allowed, "BYSCORE")
  local remaining = math.max(run.per_version - redis.call("SCARD", K.taken), want)
  if #flying > 0 and ready_last < want and remaining - want < #flying then
    -- A clock that went back must not lengthen the wait.
    if tonumber(redis.call("HGET", K.run, "hold_step") or -1) ~= step or now < run.hold_since_ms then
      set_run("hold_step", step)
      set_run("hold_since_ms", now)
    end
    if now - run.hold_since_ms < wait_ms then
      status = "held"
      for _, o in ipairs(flying) do
        local card = load_card(o)
        held_by[#held_by + 1], held_by[#held_by + 2], held_by[#held_by + 3] = tonumber(o), math.max(0, now - card.since_ms), card.worker
      end
    end
  end
end

local taken = {}
if status == "ok" then
  local batch, saved, steps = {}, {}, {}
  for _, o in ipairs(have) do
    local raw = redis.call("HGET", K.cards, o)
    batch[#batch + 1] = { o, unpacked(raw), raw }
  end
  for i, card in ipairs(load_cards(chosen)) do
    local o = chosen[i]
    card.state = "leased"
    local raw = packed(card)
    batch[#batch + 1] = { o, card, raw }
    saved[#saved + 1], saved[#saved + 2] = o, raw
    steps[#steps + 1], steps[#steps + 2] = step, o
  end
  call_on_all("ZREM", K.ready, chosen)
  call_on_all("ZREM", K.open, chosen)
  call_on_all("ZADD", K.leased, steps)
  call_on_all("SADD", K.taken, chosen)
  call_on_all("HSET", K.cards, saved)
  table.sort(batch, function(one, other) return one[1] < other[1] end)
  for _, one in ipairs(batch) do
    taken[#taken + 1], taken[#taken + 2], taken[#taken + 3] = tonumber(one[1]), (oldest_effective(one[2].ranges)), one[3]
  end
end
local num_waiting = redis.call("ZCARD", K.waiting)
local open_new = num_waiting == 0 and redis.call("ZCARD", K.open) + redis.call("SCARD", K.taken) < run.window
local bytes_refused = open_new and charged_bytes(max_group_bytes) + max_group_bytes > max_bytes
return { status, run.branch, run.trained, now, taken, left, held_by, redis.call("ZCARD", K.ready),
  redis.call("ZCARD", K.in_flight), num_waiting, bytes_refused and 1 or 0, last_hint(), dumped }
