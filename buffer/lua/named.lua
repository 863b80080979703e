#!lua flags=no-writes
-- named(now_ms; ordinal, token, payload key, ...)
-- KEYS: run cards claims
-- Returns those keys that a card names, or whose writer holds a claim and may be about to put them.
local found = {}
for i = 2, #ARGV, 3 do
  local card = load_card(name_of(tonumber(ARGV[i])))
  local key = ARGV[i + 2]
  local kept = card and (card.key == key or (card.parked ~= "" and cmsgpack.unpack(card.parked)[1] == key))
  if kept or redis.call("HEXISTS", K.claims, ARGV[i + 1]) == 1 then
    found[#found + 1] = key
  end
end
return found
