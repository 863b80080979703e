-- The elementary moves of buffer/books.py, put before every script. K holds the keys that the script's header names.
-- An ordinal is `o`, its padded name: the member of every set. A card is a table by the names in FIELDS.

local FIELDS = { "state", "attempt", "failures", "stales", "excused", "poison", "token", "worker", "since_ms",
  "oldest_branch", "oldest_number", "key", "num_bytes", "ranges", "info", "reason", "error" }
local NUMBERS = { "branch", "trained", "limit", "per_version", "window", "paused", "stopped", "end", "watermark",
  "next_ordinal", "resident_bytes", "dead_bytes", "hold_since_ms", "swept_ms" }
local NEVER_STALE = 4503599627370496
local CLOSED = { "consumed", "filtered", "discarded" }
local SIZE = { hash = "HLEN", set = "SCARD", zset = "ZCARD", stream = "XLEN" }
local TYPE = { run = "hash", cards = "hash", claims = "hash", reasons = "hash", forks = "hash", commons = "hash",
  reports = "hash", taken = "set", trash = "set", hints = "stream" }

-- Everything is checked before the first write, because an error is not rolled back: a key of another type is found here.
for name, key in pairs(K) do
  local size = redis.pcall(SIZE[TYPE[name] or "zset"], key)
  if type(size) == "table" and size.err then
    return redis.error_reply("ERR key " .. key .. " does not hold what asyncrl keeps there: " .. size.err)
  end
end

local dumped = {}
local run = {}
do
  local values = redis.call("HMGET", K.run, unpack(NUMBERS))
  for i, name in ipairs(NUMBERS) do run[name] = tonumber(values[i] or 0) end
end

local function now_ms()
  if ARGV[1] ~= "" then return tonumber(ARGV[1]) end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function name_of(ordinal) return string.format("%012d", ordinal) end

local function set_run(field, value)
  run[field] = value
  redis.call("HSET", K.run, field, value)
end

local function add_bytes(field, num_bytes)
  if num_bytes ~= 0 then set_run(field, run[field] + num_bytes) end
end

local function count_reason(reason) redis.call("HINCRBY", K.reasons, reason, 1) end

-- Not for a ledger that was dropped: a late call must not bring it back to life.
local function count_if_alive(reason)
  if run.branch > 0 then count_reason(reason) end
end

local function hint(kind) redis.call("XADD", K.hints, "MAXLEN", "~", 256, "*", "k", kind) end

local function last_hint()
  local last = redis.call("XREVRANGE", K.hints, "+", "-", "COUNT", 1)
  return last[1] and last[1][1] or "0-0"
end

local function load_card(o)
  local raw = redis.call("HGET", K.cards, o)
  if not raw then return nil end
  local card = {}
  for i, value in ipairs(cmsgpack.unpack(raw)) do card[FIELDS[i]] = value end
  return card
end

local function save_card(o, card)
  local values = {}
  for i, field in ipairs(FIELDS) do values[i] = card[field] end
  redis.call("HSET", K.cards, o, cmsgpack.pack(values))
end

local function new_card(state, reason)
  return { state = state, attempt = 0, failures = 0, stales = 0, excused = 0, poison = 0, token = "", worker = "",
    since_ms = 0, oldest_branch = -1, oldest_number = -1, key = "", num_bytes = 0, ranges = "", info = "",
    reason = reason or "", error = "" }
end

local commons = {}
local function effective(branch, number)
  if branch == run.branch then return number end
  if commons[branch] == nil then commons[branch] = tonumber(redis.call("HGET", K.commons, branch) or 0) end
  local common = commons[branch]
  return number <= common and number or 2 * common - number
end

-- ranges: msgpack of a flat list of branch, lowest, highest number.
local function oldest_effective(ranges)
  local oldest = NEVER_STALE
  if ranges == "" then return oldest end
  local flat = cmsgpack.unpack(ranges)
  for i = 1, #flat, 3 do
    oldest = math.min(oldest, effective(flat[i], flat[i + 1]), effective(flat[i], flat[i + 2]))
  end
  return oldest
end

local function ahead_of(ordinal) return redis.call("ZCOUNT", K.open, "-inf", string.format("(%d", ordinal)) end

local function charged_bytes(max_group_bytes)
  return run.resident_bytes + (redis.call("ZCARD", K.in_flight) + redis.call("ZCARD", K.waiting)) * max_group_bytes
end

local function discard_payload(card)
  if card.key == "" then return end
  redis.call("SADD", K.trash, card.key)
  dumped[#dumped + 1] = card.key
  add_bytes("resident_bytes", -card.num_bytes)
  card.key, card.num_bytes, card.ranges, card.info = "", 0, "", ""
end

local function leave(o, card)
  if card.state == "in_flight" then
    redis.call("ZREM", K.in_flight, o)
    redis.call("HDEL", K.claims, card.token)
    redis.call("ZREM", K.sampling, o)
  elseif card.state == "dead" then
    redis.call("ZREM", K.dead, o)
    if redis.call("ZREM", K.dead_kept, o) == 1 then
      add_bytes("dead_bytes", -card.num_bytes)
      add_bytes("resident_bytes", card.num_bytes)
    end
  else
    redis.call("ZREM", K[card.state], o)
  end
  if card.state == "in_flight" or card.state == "waiting" or card.state == "ready" then redis.call("ZREM", K.open, o) end
end

local function enter_open(o, set, score)
  redis.call("ZADD", K[set], score, o)
  redis.call("ZADD", K.open, tonumber(o), o)
end

local function wait(o, card)
  leave(o, card)
  discard_payload(card)
  card.state, card.oldest_branch, card.oldest_number = "waiting", -1, -1
  enter_open(o, "waiting", tonumber(o))
end

local function make_ready(o, card)
  leave(o, card)
  card.state = "ready"
  enter_open(o, "ready", oldest_effective(card.ranges))
end

local function close(o, card, kind)
  leave(o, card)
  discard_payload(card)
  redis.call("HDEL", K.cards, o)
  redis.call("ZADD", K[kind], tonumber(o), o)
end

local function die(o, card, reason, error, now, max_dead_bytes)
  leave(o, card)
  card.state, card.reason, card.error, card.oldest_branch, card.oldest_number = "dead", reason, error, -1, -1
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
  if on_stale == "resubmit" and card.stales < max_stale then
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

local function fence(branch)
  if branch == run.branch then return "ok" end
  return branch < run.branch and "fenced" or "behind"
end

local function move_to(number)
  if number > run.trained then
    set_run("trained", number)
    redis.call("DEL", K.taken)
    hint("room")
  end
end
