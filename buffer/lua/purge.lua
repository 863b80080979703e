#!lua flags=allow-oom
-- purge(now_ms; ordinal, ...)
-- KEYS: run cards dead_kept trash
-- INCLUDE: tokens moves
-- Drops the payloads of dead letters; what is known of the deaths stays.
-- Returns {{those whose payload was dropped}, {payload keys to unlink}}.
local found = {}
for i = 2, #ARGV do
  local o = name_of(tonumber(ARGV[i]))
  if redis.call("ZREM", K.dead_kept, o) == 1 then
    local card = load_card(o)
    add_bytes("dead_bytes", -card.num_bytes)
    add_bytes("resident_bytes", card.num_bytes)
    discard_payload(card)
    save_card(o, card)
    found[#found + 1] = tonumber(o)
  end
end
return { found, dumped }
