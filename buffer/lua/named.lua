#!lua flags=allow-oom
-- named(now_ms; ordinal, token, payload key, ...)
-- KEYS: run cards claims
-- Returns those keys that a card names, or whose writer holds a claim and may be about to put them.
local found = {}
for i = 2, #ARGV, 3 do
  local card = load_card(name_of(tonumber(ARGV[i])))
  if (card and card.key == ARGV[i + 2]) or redis.call("HEXISTS", K.claims, ARGV[i + 1]) == 1 then
    found[#found + 1] = ARGV[i + 2]
  end
end
return found
