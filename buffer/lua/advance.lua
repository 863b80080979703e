#!lua flags=allow-oom
-- advance(now_ms; branch, nonce, number, limit, per_version, window)
-- KEYS: run taken hints
-- The trained version, published or not, and the window that goes with it. It never goes back.
-- Returns {status, branch, trained, evaluation}.
local status, number = fence(tonumber(ARGV[2]), ARGV[3]), tonumber(ARGV[4])
if status == "ok" and number < run.trained then status = "fenced" end
if status == "ok" then
  redis.call("HSET", K.run, "limit", ARGV[5], "per_version", ARGV[6], "window", ARGV[7])
  -- A repeat may bring another limit, so it wakes those who wait, too.
  if number > run.trained then move_to(number) else hint("room") end
end
return { status, run.branch, run.trained, "" }
