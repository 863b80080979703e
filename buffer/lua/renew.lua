#!lua flags=allow-oom
-- renew(now_ms; ordinal, token, claim_ms, oldest branch or -1, oldest number, sampled tokens)
-- KEYS: run cards open in_flight sampling taken commons
-- Moves the deadline of a claim and notes what was sampled so far.
-- Returns {state, trained, ahead, taken, stopped, effective or ""}; state: held, done or fenced.
local ordinal, token, claim_ms = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local branch, number = tonumber(ARGV[5]), tonumber(ARGV[6])
local o = name_of(ordinal)
local card, taken = load_card(o), redis.call("SCARD", K.taken)
local state = "fenced"
if card and card.token == token then
  if card.state == "in_flight" then state = "held" end
  if card.state == "ready" or card.state == "leased" then state = "done" end
end
if state ~= "held" then return { state, run.trained, 0, taken, run.stopped, "" } end
redis.call("ZADD", K.in_flight, now_ms() + claim_ms, o)
if branch >= 0 then
  card.oldest_branch, card.oldest_number, card.num_sampled = branch, number, tonumber(ARGV[7])
  save_card(o, card)
  redis.call("ZADD", K.sampling, effective(branch, number), o)
end
local oldest = redis.call("ZSCORE", K.sampling, o)
return { state, run.trained, ahead_of(ordinal), taken, run.stopped, oldest and tonumber(oldest) or "" }
