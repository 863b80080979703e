-- Taking an ordinal out of one state and into another: the moves of buffer/books.py and buffer/claims.py that scripts share.
-- Payload keys that go to the trash meanwhile are in `dumped`: the caller of the script unlinks them.
local dumped = {}
local OPEN = { in_flight = true, waiting = true, ready = true }

local function dump(key)
  redis.call("SADD", K.trash, key)
  dumped[#dumped + 1] = key
end

local function discard_payload(card)
  if card.key == "" then return end
  dump(card.key)
  add_bytes("resident_bytes", -card.num_bytes)
  card.key, card.num_bytes, card.ranges, card.info = "", 0, "", ""
end

local function discard_parked(card)
  if card.parked == "" then return end
  dump(cmsgpack.unpack(card.parked)[1])
  card.parked = ""
end

-- `tokens` come in; they contain those that were parked.
local function take_over_parked(card, tokens)
  local _, _, before = spent_of(parked_info(card))
  count_tokens("sampled", tokens - before)
  discard_parked(card)
end

-- The newest result of a prompt that was drawn; -1, or nothing from an older worker: there is none.
local function note_result(o, prompt, passed, scored)
  if scored and prompt ~= "-1" then
    redis.call("HSET", K.pass_rates, prompt, passed .. " " .. scored .. " " .. string.format("%d", tonumber(o)))
  end
end

-- to: the state that follows.
local function leave(o, card, to)
  if card.state == "in_flight" then
    redis.call("ZREM", K.in_flight, o)
    redis.call("HDEL", K.claims, card.token)
    if card.oldest_branch >= 0 then redis.call("ZREM", K.sampling, o) end
    card.oldest_branch, card.oldest_number, card.num_sampled = -1, -1, 0
  elseif card.state == "dead" then
    redis.call("ZREM", K.dead, o)
    if redis.call("ZREM", K.dead_kept, o) == 1 then
      add_bytes("dead_bytes", -card.num_bytes)
      add_bytes("resident_bytes", card.num_bytes)
    end
  else
    redis.call("ZREM", K[card.state], o)
  end
  if OPEN[card.state] and not OPEN[to] then redis.call("ZREM", K.open, o) end
end

-- from: the state before; "" for an ordinal that the books did not have.
local function enter_open(o, set, score, from)
  redis.call("ZADD", K[set], score, o)
  if not OPEN[from] then redis.call("ZADD", K.open, tonumber(o), o) end
end

local function wait(o, card)
  local from = card.state
  leave(o, card, "waiting")
  discard_payload(card)
  card.state = "waiting"
  enter_open(o, "waiting", tonumber(o), from)
end

-- oldest: its effective number.
local function make_ready(o, card, oldest)
  local from = card.state
  leave(o, card, "ready")
  card.state = "ready"
  enter_open(o, "ready", oldest, from)
end

-- The caller has said how its tokens ended.
local function close(o, card, kind)
  leave(o, card, kind)
  discard_payload(card)
  discard_parked(card)
  redis.call("HDEL", K.cards, o)
  redis.call("ZADD", K[kind], tonumber(o), o)
end

-- The same for many that are leased, each with its payload and with nothing parked.
local function close_leased(names, cards, kind)
  local closed, scores, keys, num_bytes = {}, {}, {}, 0
  for i, o in ipairs(names) do
    local card = cards[i]
    closed[#closed + 1] = o
    scores[#scores + 1], scores[#scores + 2] = tonumber(o), o
    keys[#keys + 1], num_bytes = card.key, num_bytes + card.num_bytes
    dumped[#dumped + 1] = card.key
  end
  call_on_all("ZREM", K.leased, closed)
  call_on_all("HDEL", K.cards, closed)
  call_on_all("SADD", K.trash, keys)
  call_on_all("ZADD", K[kind], scores)
  add_bytes("resident_bytes", -num_bytes)
end

local function die(o, card, reason, error, now, max_dead_bytes)
  leave(o, card, "dead")
  spend("failed/" .. reason, spent_of(parked_info(card)))
  discard_parked(card)
  card.state, card.reason, card.error = "dead", reason, error
  redis.call("ZADD", K.dead, now, o)
  if card.key ~= "" then
    redis.call("ZADD", K.dead_kept, now, o)
    add_bytes("resident_bytes", -card.num_bytes)
    add_bytes("dead_bytes", card.num_bytes)
  end
  save_card(o, card)
  while run.dead_bytes > max_dead_bytes do
    local oldest = redis.call("ZRANGE", K.dead_kept, 0, 0)[1]
    redis.call("ZREM", K.dead_kept, oldest)
    local old = load_card(oldest)
    add_bytes("dead_bytes", -old.num_bytes)
    add_bytes("resident_bytes", old.num_bytes)
    discard_payload(old)
    save_card(oldest, old)
  end
end

-- Past the limit. Saves the card; answers where the ordinal went.
local function drop_stale(o, card, on_stale, max_stale)
  count_reason("stale")
  local again = on_stale == "resubmit" and card.stales < max_stale
  spend(again and "stale/resubmitted" or "stale/discarded", spent_of(card.info))
  if again then
    card.stales = card.stales + 1
    wait(o, card)
    card.token = ""
    save_card(o, card)
    return "waiting"
  end
  close(o, card, "discarded")
  return "discarded"
end

-- One failure more. Saves the card; answers where the ordinal went.
local function fail(o, card, reason, error, now, fatal, max_attempts, max_dead_bytes)
  card.failures = card.failures + 1
  card.reason, card.error = reason, error
  if fatal or card.failures >= max_attempts then
    die(o, card, reason, error, now, max_dead_bytes)
    return "dead"
  end
  wait(o, card)
  save_card(o, card)
  return "waiting"
end
