#!lua
-- report(now_ms; source, facts, most sources)
-- KEYS: run reports
-- Keeps the latest facts of each source. At the cap the source that has been silent for longest goes.
if redis.call("HEXISTS", K.reports, ARGV[2]) == 0 and redis.call("HLEN", K.reports) >= tonumber(ARGV[4]) then
  local all, oldest, since = redis.call("HGETALL", K.reports), nil, math.huge
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], "^(%d+) "))
    if at < since then oldest, since = all[i], at end
  end
  redis.call("HDEL", K.reports, oldest)
end
redis.call("HSET", K.reports, ARGV[2], string.format("%d ", now_ms()) .. ARGV[3])
return "ok"
