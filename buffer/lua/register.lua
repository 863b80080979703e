#!lua flags=allow-oom
-- register(now_ms; field, value, ...)
-- KEYS: run
-- Writes the fields that nobody has written, unless one that somebody has written differs. "" is unknown to the caller.
-- Returns the whole record: field, value, ...
local same = true
for i = 2, #ARGV, 2 do
  local known = redis.call("HGET", K.run, ARGV[i]) or ""
  if known ~= "" and ARGV[i + 1] ~= "" and known ~= ARGV[i + 1] then same = false end
end
if same then
  for i = 2, #ARGV, 2 do
    if ARGV[i + 1] ~= "" then redis.call("HSET", K.run, ARGV[i], ARGV[i + 1]) end
  end
  -- From here on a restart of the server shows: the next sweep will spare the claims that it outlived.
  redis.call("HSETNX", K.run, "run_id", string.match(redis.call("INFO", "server"), "run_id:(%x+)") or "")
end
return redis.call("HGETALL", K.run)
