#!lua flags=allow-oom
-- evaluate(now_ms; branch, label, closed label, data source, trajectories, tokens, ...)
-- KEYS: run tokens hints
-- Names the open evaluation, or none; the tokens are those of the closed one. Returns {status, branch, trained, the one that was open}.
local status = fence(tonumber(ARGV[2]))
local before = redis.call("HGET", K.run, "evaluation") or ""
if status == "ok" then
  redis.call("HSET", K.run, "evaluation", ARGV[3])
  for i = 5, #ARGV, 3 do
    local at = "|" .. ARGV[4] .. "|" .. ARGV[i]
    redis.call("HSET", K.tokens, "en" .. at, ARGV[i + 1], "et" .. at, ARGV[i + 2])
  end
  hint("room")
end
return { status, run.branch, run.trained, before }
