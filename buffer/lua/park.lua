#!lua
-- park(now_ms; ordinal, token, payload key, bytes, ranges, info)
-- KEYS: run cards trash tokens
-- INCLUDE: tokens moves
-- Stays in_flight; the payload is kept for the next owner, in place of what was parked before.
-- Returns {"parked" or "fenced", payload keys for the caller to unlink ...}.
local o, token, key = name_of(tonumber(ARGV[2])), ARGV[3], ARGV[4]
local card = load_card(o)
if not card or card.token ~= token or card.state ~= "in_flight" then
  dump(key)
  return { "fenced", key }
end
if card.parked == "" or cmsgpack.unpack(card.parked)[1] ~= key then
  local _, _, tokens = spent_of(ARGV[7])
  take_over_parked(card, tokens)
  card.parked = cmsgpack.pack({ key, tonumber(ARGV[5]), ARGV[6], ARGV[7] })
  save_card(o, card)
  write_tokens()
end
return { "parked", unpack(dumped) }
