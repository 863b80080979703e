#!lua flags=allow-oom
-- evaluate(now_ms; branch, label)
-- KEYS: run hints
-- Names the open evaluation, or none. Returns {status, branch, trained, the one that was open}.
local status = fence(tonumber(ARGV[2]))
local before = redis.call("HGET", K.run, "evaluation") or ""
if status == "ok" then
  redis.call("HSET", K.run, "evaluation", ARGV[3])
  hint("room")
end
return { status, run.branch, run.trained, before }
