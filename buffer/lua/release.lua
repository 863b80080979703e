#!lua flags=allow-oom
-- release(now_ms; ordinal, token, reason, error, kind, max_attempts, max_dead_bytes)
-- KEYS: run cards claims open in_flight sampling waiting dead dead_kept trash reasons hints
-- INCLUDE: moves
-- in_flight -> waiting or dead. kind: failed (counted), fatal (dead at once) or abandoned (costs nothing).
-- Returns "waiting", "dead" or "fenced"; a repeat returns the same.
local o, token, reason, error, kind = name_of(tonumber(ARGV[2])), ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local card = load_card(o)
if card and card.token == token and (card.state == "waiting" or card.state == "dead") then return card.state end
if not card or card.token ~= token or card.state ~= "in_flight" then
  count_if_alive("fenced")
  return "fenced"
end
count_reason(reason)
hint("room")
if kind == "abandoned" then
  wait(o, card)
  save_card(o, card)
  return "waiting"
end
return fail(o, card, reason, error, now_ms(), kind == "fatal", tonumber(ARGV[7]), tonumber(ARGV[8]))
