#!lua flags=no-writes
-- pass_rates(now_ms; prompt, ...)
-- KEYS: run pass_rates
-- Returns the newest result of each prompt, or nothing in its place.
local found = {}
for i = 2, #ARGV do found[#found + 1] = redis.call("HGET", K.pass_rates, ARGV[i]) or "" end
return found
