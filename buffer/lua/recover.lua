#!lua flags=allow-oom
-- recover(now_ms; nonce, ledger, number, limit, per_version, window, seen, end, max_dead_bytes, max_poison)
-- KEYS: run cards claims open in_flight sampling waiting ready leased taken dead dead_kept consumed filtered discarded trash reasons forks commons tokens hints
-- INCLUDE: tokens moves closing
-- A new branch from the checkpoint's version. Named -> its kind; other leased -> ready; consumed but not named, or of
-- forgotten kind -> waiting; counters from the ledger. The same nonce again: the same branch.
-- Returns {status, branch, trained, evaluation that was open, payload keys for the caller to unlink ...}.
local nonce, number, now = ARGV[2], tonumber(ARGV[4]), now_ms()
if run.nonce == nonce then return { "ok", run.branch, run.trained, "" } end

-- The tree: forks[branch] = {parent, number at which it left it}. Branch 0 is the root.
local forks, branch = {}, math.max(run.branch, ledger.branch, tonumber(ARGV[8]), 0)
for _, fork in ipairs(ledger.forks) do redis.call("HSET", K.forks, fork[1], fork[2] .. ":" .. fork[3]) end
local stored = redis.call("HGETALL", K.forks)
for i = 1, #stored, 2 do
  local parent, at = string.match(stored[i + 1], "(%d+):(%d+)")
  forks[tonumber(stored[i])] = { tonumber(parent), tonumber(at) }
  branch = math.max(branch, tonumber(stored[i]))
end
branch = branch + 1
forks[branch] = { ledger.branch, ledger.number }
redis.call("HSET", K.forks, branch, ledger.branch .. ":" .. string.format("%d", ledger.number))

-- For every older branch the deepest number it has in common with the new one.
local ours, at, top = {}, branch, 4294967295
while true do
  ours[at] = top
  if at == 0 then break end
  top = math.min(top, forks[at][2])
  at = forks[at][1]
end
redis.call("DEL", K.commons)
forks[0] = { 0, 0 }
for older in pairs(forks) do
  local reach = 4294967295
  local here = older
  while not ours[here] do
    reach = math.min(reach, forks[here][2])
    here = forks[here][1]
  end
  if older ~= branch then redis.call("HSET", K.commons, older, string.format("%d", math.min(reach, ours[here]))) end
end

local evaluation = redis.call("HGET", K.run, "evaluation") or ""
run.branch = branch
redis.call("HSET", K.run, "branch", branch, "nonce", nonce, "trained", number, "evaluation", "", "stopped", 0,
  "limit", ARGV[5], "per_version", ARGV[6], "window", ARGV[7], "end", ARGV[9], "hold_step", -1, "hold_since_ms", 0)
redis.call("DEL", K.taken)
close_named()
align_tokens()

-- Leased ones -> ready. Those of the newest batch were in the trainer's hands when it died.
local newest = tonumber(redis.call("ZRANGE", K.leased, -1, -1, "WITHSCORES")[2] or -1)
local steps = redis.call("ZRANGE", K.leased, 0, -1, "WITHSCORES")
for i = 1, #steps, 2 do
  local o, step = steps[i], tonumber(steps[i + 1])
  local card = load_card(o)
  if step == newest and newest ~= -1 then card.poison = card.poison + 1 end
  if card.poison >= tonumber(ARGV[11]) then
    count_reason("trainer_poison")
    spend("failed/trainer_poison", spent_of(card.info))
    die(o, card, "trainer_poison", ARGV[11] .. " trainers died with it in the batch of their newest step, the last one at step "
      .. string.format("%d", step), now, tonumber(ARGV[10]))
  else
    make_ready(o, card, (oldest_effective(card.ranges)))
    save_card(o, card)
  end
end

local undone = {}
for _, o in ipairs(redis.call("ZRANGE", K.consumed, 0, -1)) do
  local ordinal = tonumber(o)
  if kind_of[ordinal] ~= "consumed" and (ordinal >= ledger.watermark or exempt[ordinal]) then
    redis.call("ZREM", K.consumed, o)
    undone[#undone + 1] = ordinal
  end
end
for _, ordinal in ipairs(undone) do reopen(ordinal) end
for ordinal = ledger.watermark, run.watermark - 1 do reopen(ordinal) end
fill_gaps(now)
move_watermark()

for _, o in ipairs(redis.call("ZRANGE", K.ready, 0, -1)) do
  redis.call("ZADD", K.ready, (oldest_effective(load_card(o).ranges)), o)
end
for _, o in ipairs(redis.call("ZRANGE", K.sampling, 0, -1)) do
  local card = load_card(o)
  redis.call("ZADD", K.sampling, effective(card.oldest_branch, card.oldest_number), o)
end
for reason, count in pairs(ledger.reasons) do
  if count > tonumber(redis.call("HGET", K.reasons, reason) or 0) then redis.call("HSET", K.reasons, reason, count) end
end
write_tokens()
hint("room")
local answer = { "ok", branch, number, evaluation }
for _, key in ipairs(dumped) do answer[#answer + 1] = key end
return answer
