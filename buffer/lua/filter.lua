#!lua flags=allow-oom
-- filter(now_ms; ordinal, token, reason, data source, trajectories, sampled tokens, prompt, passed, scored)
-- KEYS: run cards claims open in_flight sampling filtered trash reasons tokens hints pass_rates
-- INCLUDE: tokens moves
-- in_flight -> filtered: the worker found no learning signal in the group.
-- Returns {"filtered" or "fenced", payload keys for the caller to unlink ...}.
local o, token, reason = name_of(tonumber(ARGV[2])), ARGV[3], ARGV[4]
local card = load_card(o)
if not card or card.token ~= token or card.state ~= "in_flight" then
  count_if_alive("fenced")
  return { "fenced" }
end
take_over_parked(card, tonumber(ARGV[7]))
note_result(o, ARGV[8], ARGV[9], ARGV[10])
spend("filtered/" .. reason, ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]))
close(o, card, "filtered")
count_reason(reason)
write_tokens()
hint("room")
return { "filtered", unpack(dumped) }
