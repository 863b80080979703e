#!lua flags=allow-oom
-- drop(now_ms)
-- KEYS: run cards claims open in_flight sampling waiting ready leased taken dead dead_kept consumed filtered discarded trash reasons forks commons hints reports tokens draws pass_rates
-- Forgets the run. Returns the keys of its payloads, for the caller to unlink.
local keys = redis.call("SMEMBERS", K.trash)
for _, raw in ipairs(redis.call("HVALS", K.cards)) do
  local card = cmsgpack.unpack(raw)
  if card[13] ~= "" then keys[#keys + 1] = card[13] end
  if card[17] ~= "" then keys[#keys + 1] = cmsgpack.unpack(card[17])[1] end
end
for _, key in ipairs(KEYS) do redis.call("DEL", key) end
return keys
