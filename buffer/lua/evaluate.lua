#!lua flags=allow-oom
-- evaluate(now_ms; branch, nonce, label, closed label, data source, trajectories, tokens, ...)
-- KEYS: run tokens hints
-- Names the open evaluation, or none; the tokens are those of the closed one. Returns {status, branch, trained, the one that was open}.
local status = fence(tonumber(ARGV[2]), ARGV[3])
local before = redis.call("HGET", K.run, "evaluation") or ""
if status == "ok" then
  redis.call("HSET", K.run, "evaluation", ARGV[4])
  for i = 6, #ARGV, 3 do
    local at = "|" .. ARGV[5] .. "|" .. ARGV[i]
    redis.call("HSET", K.tokens, "en" .. at, ARGV[i + 1], "et" .. at, ARGV[i + 2])
  end
  hint("room")
end
return { status, run.branch, run.trained, before }
