#!lua flags=allow-oom
-- release(now_ms; ordinal, token, reason, error, kind, max_attempts, max_dead_bytes, data source, trajectories, tokens)
-- KEYS: run cards claims open in_flight sampling waiting dead dead_kept trash reasons tokens hints
-- INCLUDE: tokens moves
-- in_flight -> waiting or dead. kind: failed (counted), fatal (dead at once) or abandoned (costs nothing).
-- What was parked stays after an abandoned one; after a failure it may be the cause, so it goes.
-- Returns {"waiting", "dead" or "fenced", payload keys for the caller to unlink ...}; a repeat returns the same.
local o, token, reason, error, kind = name_of(tonumber(ARGV[2])), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local card = load_card(o)
if card and card.token == token and (card.state == "waiting" or card.state == "dead") then
  return { card.state }
end
if not card or card.token ~= token or card.state ~= "in_flight" then
  count_if_alive("fenced")
  return { "fenced" }
end
count_reason(reason)
hint("room")
local source, trajectories, tokens = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
if kind == "abandoned" then
  waste("failed/" .. reason, source, trajectories, tokens)
  write_tokens()
  wait(o, card)
  save_card(o, card)
  return { "waiting" }
end
local kept_source, kept_trajectories, kept_tokens = spent_of(parked_info(card))
if kept_tokens > tokens then source, trajectories, tokens = kept_source, kept_trajectories, kept_tokens end
take_over_parked(card, tokens)
spend("failed/" .. reason, source, trajectories, tokens)
write_tokens()
local to = fail(o, card, reason, error, now_ms(), kind == "fatal", tonumber(ARGV[7]), tonumber(ARGV[8]))
return { to, unpack(dumped) }
