#!lua flags=no-writes
-- audit(now_ms)
-- KEYS: run cards claims open in_flight sampling waiting ready leased taken dead dead_kept consumed filtered discarded trash reasons forks commons tokens
-- Returns the whole books at one moment: hashes as field, value, ...; sorted sets as member, score, ...; sets as members;
-- in the order of the keys above.
local answer = {}
for i, key in ipairs(KEYS) do
  local kind = redis.call("TYPE", key).ok
  if kind == "hash" then answer[i] = redis.call("HGETALL", key)
  elseif kind == "set" then answer[i] = redis.call("SMEMBERS", key)
  elseif kind == "zset" then answer[i] = redis.call("ZRANGE", key, 0, -1, "WITHSCORES")
  else answer[i] = {} end
end
return answer
