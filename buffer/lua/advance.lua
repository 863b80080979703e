#!lua flags=allow-oom
-- advance(now_ms; branch, number, limit, per_version, window)
-- KEYS: run taken hints
-- The trained version, published or not, and the window that goes with it. It never goes back.
-- Returns {status, branch, trained, evaluation}.
local status, number = fence(tonumber(ARGV[2])), tonumber(ARGV[3])
if status == "ok" and number < run.trained then status = "fenced" end
if status == "ok" then
  move_to(number)
  redis.call("HSET", K.run, "limit", ARGV[4], "per_version", ARGV[5], "window", ARGV[6])
  hint("room")
end
return { status, run.branch, run.trained, "" }
