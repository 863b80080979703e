#!lua flags=allow-oom
-- filter(now_ms; ordinal, token, reason)
-- KEYS: run cards claims open in_flight sampling filtered trash reasons hints
-- INCLUDE: moves
-- in_flight -> filtered: the worker found no learning signal in the group. Returns "filtered" or "fenced".
local o, token, reason = name_of(tonumber(ARGV[2])), ARGV[3], ARGV[4]
local card = load_card(o)
if not card or card.token ~= token or card.state ~= "in_flight" then
  count_if_alive("fenced")
  return "fenced"
end
close(o, card, "filtered")
count_reason(reason)
hint("room")
return "filtered"
