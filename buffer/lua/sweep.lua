#!lua flags=allow-oom
-- sweep(now_ms; claim_ms, max_attempts, max_dead_bytes, max_excuses)
-- KEYS: run cards claims open in_flight sampling waiting dead dead_kept trash reasons tokens hints
-- INCLUDE: tokens moves
-- Expired claims -> waiting or dead. The first sweep after a restart, or after the clock went back, only moves deadlines.
-- Returns {{expired}, {dead}, guarded, excused, {trash}}.
local claim_ms, max_attempts, max_dead_bytes = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if run.branch == 0 then return { {}, {}, 0, 0, {} } end
local now = now_ms()
local run_id = string.match(redis.call("INFO", "server"), "run_id:(%x+)") or ""
local known = redis.call("HGET", K.run, "run_id") or run_id
local guarded = known ~= run_id or now < run.swept_ms - claim_ms
set_run("swept_ms", now)
set_run("run_id", run_id)

local function trash()
  local keys = redis.call("SMEMBERS", K.trash)
  table.sort(keys)
  local first = {}
  for i = 1, math.min(256, #keys) do first[i] = keys[i] end
  return first
end

if guarded then
  for _, o in ipairs(redis.call("ZRANGE", K.in_flight, 0, -1)) do redis.call("ZADD", K.in_flight, now + claim_ms, o) end
  return { {}, {}, 1, 0, trash() }
end
local late = redis.call("ZRANGE", K.in_flight, "-inf", now, "BYSCORE")
-- Whoever missed a renewal is silent: the deadlines of a dead cluster pass one after the other.
local silent = redis.call("ZRANGE", K.in_flight, "-inf", now + math.floor(claim_ms / 3), "BYSCORE")
local excused = #late > 0 and #silent > 1 and 2 * #silent > redis.call("ZCARD", K.in_flight)
if excused then late = silent end
table.sort(late)
local expired, dead = {}, {}
for i, o in ipairs(late) do
  local card = load_card(o)
  expired[i] = tonumber(o)
  count_reason("worker_lost")
  local _, _, kept = spent_of(parked_info(card))
  waste("failed/worker_lost", "", 0, math.max(0, card.num_sampled - kept))
  if excused and card.excused < tonumber(ARGV[5]) then
    card.excused = card.excused + 1
    card.reason = "worker_lost"
    wait(o, card)
  elseif fail(o, card, "worker_lost", "worker " .. card.worker .. " fell silent", now, false, max_attempts,
      max_dead_bytes) == "dead" then
    dead[#dead + 1] = tonumber(o)
  end
  card.token = ""
  save_card(o, card)
end
if #late > 0 then
  write_tokens()
  hint("room")
end
return { expired, dead, 0, excused and 1 or 0, trash() }
