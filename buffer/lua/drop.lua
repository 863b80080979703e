#!lua flags=allow-oom
-- drop(now_ms)
-- KEYS: run cards claims open in_flight sampling waiting ready leased taken dead dead_kept consumed filtered discarded trash reasons forks commons hints reports
-- Forgets the run. Returns the keys of its payloads, for the caller to unlink.
local keys = redis.call("SMEMBERS", K.trash)
for _, raw in ipairs(redis.call("HVALS", K.cards)) do
  local card = cmsgpack.unpack(raw)
  if card[12] ~= "" then keys[#keys + 1] = card[12] end
end
for _, key in ipairs(KEYS) do redis.call("DEL", key) end
return keys
