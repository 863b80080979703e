#!lua flags=no-writes
-- counts(now_ms)
-- KEYS: run in_flight waiting ready leased consumed filtered discarded dead
-- Returns in_flight, waiting, ready, leased, consumed, filtered, discarded, dead, next_ordinal.
local answer = {}
for i, name in ipairs({ "in_flight", "waiting", "ready", "leased", "consumed", "filtered", "discarded", "dead" }) do
  answer[i] = redis.call("ZCARD", K[name]) + tonumber(redis.call("HGET", K.run, "below_" .. name) or 0)
end
answer[#answer + 1] = run.next_ordinal
return answer
