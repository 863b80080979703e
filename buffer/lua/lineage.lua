#!lua flags=no-writes
-- lineage(now_ms; watermark, open ordinals to show, ordinal, ...)
-- KEYS: run cards open leased dead consumed filtered discarded reasons forks tokens
-- What a checkpoint asks of the books, without what is ready or in flight: O(leased + dead + closed since the last commit).
-- Open ordinals shown: so many of the smallest from the watermark on, and as many as are closed, and those that are named.
-- Returns what keys.AUDIT_KEYS names, in that order, with nothing where nothing is shown; cards are those of the leased.
local num_closed = redis.call("ZCARD", K.consumed) + redis.call("ZCARD", K.filtered) + redis.call("ZCARD", K.discarded)
local open = redis.call("ZRANGE", K.open, math.max(tonumber(ARGV[2]), run.watermark), "+inf", "BYSCORE",
  "LIMIT", 0, num_closed + tonumber(ARGV[3]))
for i = 4, #ARGV do
  local o = name_of(tonumber(ARGV[i]))
  if redis.call("ZSCORE", K.open, o) then open[#open + 1] = o end
end
local function scores(key) return redis.call("ZRANGE", key, 0, -1, "WITHSCORES") end
local leased, cards, scored = scores(K.leased), {}, {}
for i = 1, #leased, 2 do
  cards[#cards + 1], cards[#cards + 2] = leased[i], redis.call("HGET", K.cards, leased[i])
end
for _, o in ipairs(open) do scored[#scored + 1], scored[#scored + 2] = o, tonumber(o) end
return { redis.call("HGETALL", K.run), cards, {}, scored, {}, {}, {}, {}, leased, {}, scores(K.dead), {}, scores(K.consumed),
  scores(K.filtered), scores(K.discarded), {}, redis.call("HGETALL", K.reasons), redis.call("HGETALL", K.forks), {},
  redis.call("HGETALL", K.tokens), {}, {} }
