-- The moves of buffer/closing.py that commit and recover share; `ledger` is the checkpoint's.
local ledger = cmsgpack.unpack(ARGV[3])

local exempt, kind_of, num_named = {}, {}, 0
for _, ordinal in ipairs(ledger.reopened) do exempt[ordinal] = true end
for _, ordinal in ipairs(ledger.dead) do
  exempt[ordinal] = true
  num_named = math.max(num_named, ordinal + 1)
end
for _, kind in ipairs(CLOSED) do
  for _, ordinal in ipairs(ledger.closed[kind]) do
    kind_of[ordinal] = kind
    num_named = math.max(num_named, ordinal + 1)
  end
end

local FATE_OF = { consumed = "trained", filtered = "filtered/closed_before", discarded = "stale/discarded" }
local function close_as(o, card, kind)
  if card.state == "ready" or card.state == "leased" then spend(FATE_OF[kind], spent_of(card.info)) end
  spend("failed/closed_before", spent_of(parked_info(card)))
  close(o, card, kind)
end

-- Named by the checkpoint, in whatever state -> its kind.
local function close_named()
  local kinds, names = {}, {}
  local function add(o)
    local ordinal = tonumber(o)
    local kind = kind_of[ordinal] or (ordinal < ledger.watermark and not exempt[ordinal] and "consumed")
    if kind and not kinds[o] then
      kinds[o] = kind
      names[#names + 1] = o
    end
  end
  for ordinal in pairs(kind_of) do add(name_of(ordinal)) end
  for _, o in ipairs(redis.call("ZRANGE", K.open, "-inf", string.format("(%d", ledger.watermark), "BYSCORE")) do add(o) end
  for _, set in ipairs({ K.leased, K.dead }) do
    for _, o in ipairs(redis.call("ZRANGE", set, 0, -1)) do add(o) end
  end

  local cards, leased, leased_cards, without = load_cards(names), {}, {}, {}
  for i = 1, #names do
    local o, card = names[i], cards[i]
    if not card then
      without[#without + 1] = o
    elseif card.state == "leased" and kinds[o] == "consumed" then
      spend(FATE_OF.consumed, spent_of(card.info))
      leased[#leased + 1], leased_cards[#leased_cards + 1] = o, card
    else
      close_as(o, card, kinds[o])
    end
  end
  close_leased(leased, leased_cards, "consumed")
  for _, o in ipairs(without) do
    local kind = kinds[o]
    if redis.call("ZSCORE", K[kind], o) == false then
      for _, other in ipairs(CLOSED) do redis.call("ZREM", K[other], o) end
      redis.call("ZADD", K[kind], tonumber(o), o)
    end
  end
end

-- What the lineage has trained is what its ledger says: more was trained on a branch that is given up, less was lost by
-- Redis.
local function align_tokens()
  write_tokens()
  local have = {}
  for source in pairs(ledger.trained_tokens) do have[source] = { 0, 0 } end
  local stored = redis.call("HGETALL", K.tokens)
  for i = 1, #stored, 2 do
    local kind, source = string.match(stored[i], "^([nt])|trained|(.*)$")
    if kind then
      have[source] = have[source] or { 0, 0 }
      have[source][kind == "n" and 1 or 2] = tonumber(stored[i + 1])
    end
    if string.sub(stored[i], 1, 2) == "m|" then redis.call("HDEL", K.tokens, stored[i]) end
  end
  for source, before in pairs(have) do
    local want = ledger.trained_tokens[source] or { 0, 0 }
    if before[2] > want[2] then
      spend("rolled_back", source, before[1] - want[1], before[2] - want[2])
    else
      count_tokens("sampled", want[2] - before[2])
    end
    redis.call("HSET", K.tokens, "n|trained|" .. source, want[1], "t|trained|" .. source, want[2])
  end
  for source, masked in pairs(ledger.masked) do redis.call("HSET", K.tokens, "m|" .. source, masked) end
  write_tokens()
end

-- -> waiting, or -> dead, unless the books have it somewhere.
local function reopen(ordinal, dead_since)
  local o = name_of(ordinal)
  if redis.call("HEXISTS", K.cards, o) == 1 then return end
  for _, kind in ipairs(CLOSED) do
    if redis.call("ZSCORE", K[kind], o) then return end
  end
  if dead_since then
    save_card(o, new_card("dead", "forgotten"))
    redis.call("ZADD", K.dead, dead_since, o)
  else
    save_card(o, new_card("waiting"))
    enter_open(o, "waiting", ordinal, "")
  end
end

-- Ordinals that only the ledger knows of: Redis lost them, so those that are not closed start again.
local function fill_gaps(now)
  local known = math.max(run.next_ordinal, ledger.watermark)
  set_run("next_ordinal", math.max(known, num_named))
  for _, ordinal in ipairs(ledger.dead) do reopen(ordinal, now) end
  for ordinal = known, run.next_ordinal - 1 do reopen(ordinal) end
  for _, ordinal in ipairs(ledger.reopened) do reopen(ordinal) end
end

-- Closed ones below it are counted by the ledger, except those that it still calls dead or reopened.
local function move_watermark()
  set_run("watermark", ledger.watermark)
  local below = string.format("(%d", ledger.watermark)
  for _, kind in ipairs(CLOSED) do
    local late = 0
    for _, o in ipairs(redis.call("ZRANGE", K[kind], "-inf", below, "BYSCORE")) do
      if exempt[tonumber(o)] then late = late + 1 end
    end
    redis.call("ZREMRANGEBYSCORE", K[kind], "-inf", below)
    redis.call("HSET", K.run, "below_" .. kind, ledger.below[kind] + late)
  end
end
