#!lua
-- reserve(now_ms; token, worker, claim_ms, max_bytes, max_group_bytes, on_stale, max_draws; position, prompt, reason, ...)
-- KEYS: run cards claims open in_flight sampling waiting taken trash commons reasons tokens hints draws
-- INCLUDE: tokens moves
-- The smallest waiting ordinal, else a new one -> in_flight. The same token again: the same claim.
-- What was parked for it goes if it is past the limit: continued, it would be stale whenever it came in.
-- The draws that are offered are for an ordinal without one: the first that nobody has passed is recorded with it.
-- Returns {"granted", ordinal, attempt, ahead, taken, branch, trained, limit, per_version, parked, draw, branch, common,
-- ...} or {"refused", reason, ahead, taken, window, bytes, last hint, next position}.
local token, worker = ARGV[2], ARGV[3]
local claim_ms, max_bytes, max_group_bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local taken = redis.call("SCARD", K.taken)

local function granted(ordinal, ahead, card)
  local answer = { "granted", ordinal, card.attempt, ahead, taken, run.branch, run.trained, run.limit, run.per_version,
    card.parked, redis.call("HGET", K.draws, name_of(ordinal)) or "" }
  for _, value in ipairs(redis.call("HGETALL", K.commons)) do answer[#answer + 1] = tonumber(value) end
  return answer
end

local known = redis.call("HGET", K.claims, token)
if known then return granted(tonumber(known), ahead_of(tonumber(known)), load_card(known)) end

local smallest = redis.call("ZRANGE", K.waiting, 0, 0)[1]
local ordinal = smallest and tonumber(smallest) or run.next_ordinal
local ahead, charged = ahead_of(ordinal), charged_bytes(max_group_bytes)
local reason = nil
if run.stopped == 1 then reason = "stopped"
elseif run.paused == 1 then reason = "paused"
elseif run.branch == 0 then reason = "no_trainer"
elseif ahead + taken >= run.window or (not smallest and run["end"] > 0 and ordinal >= run["end"]) then reason = "window"
elseif not smallest and charged + max_group_bytes > max_bytes then reason = "bytes" end
local o, floor, drawn = name_of(ordinal), math.max(run.next_position, run.next_ordinal), nil
if not reason and #ARGV > 8 and redis.call("HEXISTS", K.draws, o) == 0 then
  for i = 9, #ARGV, 3 do
    if not drawn and tonumber(ARGV[i]) >= floor then drawn = i end
  end
  if not drawn then reason = "draw" end
end
if reason then
  if reason ~= "draw" then count_if_alive("denied_" .. reason) end -- the same worker asks again at once
  return { "refused", reason, ahead, taken, run.window, charged, last_hint(), floor }
end
if drawn then
  redis.call("HSET", K.draws, o, ARGV[drawn] .. " " .. ARGV[drawn + 1] .. " " .. ARGV[drawn + 2])
  set_run("next_position", tonumber(ARGV[drawn]) + 1)
  if ordinal >= tonumber(ARGV[8]) then redis.call("HDEL", K.draws, name_of(ordinal - tonumber(ARGV[8]))) end
end

local card, now = nil, now_ms()
if smallest then
  card = load_card(o)
  leave(o, card, "in_flight")
  if card.parked ~= "" and ARGV[7] ~= "mask" then
    local parked = cmsgpack.unpack(card.parked)
    if is_late(oldest_effective(parked[3])) then
      count_reason("stale_partials")
      spend("stale/partials", spent_of(parked[4]))
      write_tokens()
      discard_parked(card)
    end
  end
else
  set_run("next_ordinal", ordinal + 1)
  card = new_card("in_flight")
end
card.state, card.attempt, card.token, card.worker = "in_flight", card.attempt + 1, token, worker
card.since_ms, card.reason, card.error = now, "", ""
save_card(o, card)
enter_open(o, "in_flight", now + claim_ms, smallest and "waiting" or "")
redis.call("HSET", K.claims, token, o)
return granted(ordinal, ahead, card)
