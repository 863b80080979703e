#!lua flags=no-writes
-- types(now_ms)
-- KEYS: run cards claims open in_flight sampling waiting ready leased taken dead dead_kept consumed filtered discarded trash reasons forks commons hints reports tokens draws pass_rates
-- A key that holds something else is an error that names it: scripts would fail on it half-way, and nothing is rolled back.
local TYPE = { run = "hash", cards = "hash", claims = "hash", reasons = "hash", forks = "hash", commons = "hash",
  reports = "hash", tokens = "hash", draws = "hash", pass_rates = "hash", taken = "set", trash = "set", hints = "stream" }
for name, key in pairs(K) do
  local kind, expected = redis.call("TYPE", key).ok, TYPE[name] or "zset"
  if kind ~= expected and kind ~= "none" then
    return redis.error_reply("ERR key " .. key .. " does not hold what asyncrl keeps there: it is a " .. kind
      .. ", expected a " .. expected)
  end
end
return "ok"
