-- What every script begins with. K holds the keys that its header names; `run` the numbers of the run record, and its nonce.
-- An ordinal is `o`, its padded name: the member of every set. A card is a table by the names in FIELDS.
-- That each key holds what is kept there is checked by types.lua, once for each connection: nobody else writes here.

local FIELDS = { "state", "attempt", "failures", "stales", "excused", "poison", "token", "worker", "since_ms",
  "oldest_branch", "oldest_number", "num_sampled", "key", "num_bytes", "ranges", "info", "parked", "reason", "error" }
local NUMBERS = { "branch", "trained", "limit", "per_version", "window", "paused", "stopped", "end", "watermark",
  "next_ordinal", "next_position", "resident_bytes", "dead_bytes", "hold_since_ms", "swept_ms" }
local NEVER_STALE = 4503599627370496
local CLOSED = { "consumed", "filtered", "discarded" }

local run = {}
do
  local values = redis.call("HMGET", K.run, "nonce", unpack(NUMBERS))
  run.nonce = values[1]
  for i, name in ipairs(NUMBERS) do run[name] = tonumber(values[i + 1] or 0) end
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

local function unpacked(raw)
  if not raw then return nil end
  local card = {}
  for i, value in ipairs(cmsgpack.unpack(raw)) do card[FIELDS[i]] = value end
  return card
end

local function packed(card)
  local values = {}
  for i, field in ipairs(FIELDS) do values[i] = card[field] end
  return cmsgpack.pack(values)
end

local function load_card(o) return unpacked(redis.call("HGET", K.cards, o)) end

local function save_card(o, card) redis.call("HSET", K.cards, o, packed(card)) end

-- One command on many members costs a fraction of as many commands, here and in the append-only file.
local MOST_ARGUMENTS = 1000 -- even, for those that come in pairs
local function call_on_all(command, key, arguments)
  for first = 1, #arguments, MOST_ARGUMENTS do
    redis.call(command, key, unpack(arguments, first, math.min(first + MOST_ARGUMENTS - 1, #arguments)))
  end
end

local function load_cards(names)
  local cards = {}
  for first = 1, #names, MOST_ARGUMENTS do
    local last = math.min(first + MOST_ARGUMENTS - 1, #names)
    for i, raw in ipairs(redis.call("HMGET", K.cards, unpack(names, first, last))) do
      cards[first + i - 1] = unpacked(raw)
    end
  end
  return cards
end

local function new_card(state, reason)
  return { state = state, attempt = 0, failures = 0, stales = 0, excused = 0, poison = 0, token = "", worker = "",
    since_ms = 0, oldest_branch = -1, oldest_number = -1, num_sampled = 0, key = "", num_bytes = 0, ranges = "",
    info = "", parked = "", reason = reason or "", error = "" }
end

local commons = {}
local function effective(branch, number)
  if branch == run.branch then return number end
  if commons[branch] == nil then commons[branch] = tonumber(redis.call("HGET", K.commons, branch) or 0) end
  local common = commons[branch]
  return number <= common and number or 2 * common - number
end

-- ranges: msgpack of a flat list of branch, lowest, highest number. Returns the newest branch, too.
local function oldest_effective(ranges)
  local oldest, newest_branch = NEVER_STALE, 0
  if ranges == "" then return oldest, newest_branch end
  local flat = cmsgpack.unpack(ranges)
  for i = 1, #flat, 3 do
    oldest = math.min(oldest, effective(flat[i], flat[i + 1]), effective(flat[i], flat[i + 2]))
    newest_branch = math.max(newest_branch, flat[i])
  end
  return oldest, newest_branch
end

-- Past the limit. Of a branch that is newer than the ledger's nothing is known: Redis lost its recover, and the next one
-- judges the group.
local function is_late(oldest, newest_branch)
  return newest_branch <= run.branch and oldest < run.trained - run.limit
end

local function ahead_of(ordinal) return redis.call("ZCOUNT", K.open, "-inf", string.format("(%d", ordinal)) end

local function charged_bytes(max_group_bytes)
  return run.resident_bytes + (redis.call("ZCARD", K.in_flight) + redis.call("ZCARD", K.waiting)) * max_group_bytes
end

-- A recover that Redis lost with its tail is made again by somebody else, under the same number and another nonce.
-- "" is a caller that did not open its branch itself.
local function fence(branch, nonce)
  if branch == run.branch then
    return (nonce == "" or nonce == run.nonce) and "ok" or "fenced"
  end
  return branch < run.branch and "fenced" or "behind"
end

local function move_to(number)
  if number > run.trained then
    set_run("trained", number)
    redis.call("DEL", K.taken)
    hint("room")
  end
end
