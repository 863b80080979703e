#!lua flags=allow-oom
-- pause(now_ms; paused or "", stopped or "")
-- KEYS: run hints
-- The operator's flags. Each request to stop counts, so that an old one is told from a new one.
if ARGV[2] ~= "" then redis.call("HSET", K.run, "paused", ARGV[2]) end
if ARGV[3] ~= "" then redis.call("HSET", K.run, "stopped", ARGV[3]) end
if ARGV[3] == "1" then redis.call("HINCRBY", K.run, "num_stops", 1) end
hint("room")
return "ok"
