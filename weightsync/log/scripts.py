"""The Lua of the version log: one script per transition, all keys in KEYS, every check before the first write.

Versions come as 20 decimal digits, so that they compare as text: a Lua number holds 53 bits. Keys are named where they
are used, in log/redis.py. Scripts that free room or only note a server's state may run in a full Redis.
"""

_HINT = """
local function hint(key, topic)
  redis.call("XADD", key, "MAXLEN", "~", 256, "*", "topic", topic)
end
local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""

CLAIM = (
    """#!lua flags=allow-oom
-- claim(KEYS: owner, hints; ARGV: branch) -> {"done"} or {"fenced", owner}
"""
    + _HINT
    + """
local owner = tonumber(redis.call("GET", KEYS[1]) or "0")
if owner > tonumber(ARGV[1]) then return { "fenced", tostring(owner) } end
redis.call("SET", KEYS[1], ARGV[1])
hint(KEYS[2], "head")
return { "done" }
"""
)

FLIP = (
    """#!lua
-- flip(KEYS: owner, head, records, anchors, nonces, digests, hints;
--      ARGV: branch, version, base or "", record, nonce, digest, anchor or "")
-- -> {"done"}, {"fenced", owner} or {"base", head}. A repeat is recognised by its nonce before anything else.
"""
    + _HINT
    + """
if redis.call("HGET", KEYS[5], ARGV[2]) == ARGV[5] then return { "done" } end
local owner = tonumber(redis.call("GET", KEYS[1]) or "0")
if ARGV[2] ~= "00000000000000000000" and owner > tonumber(ARGV[1]) then return { "fenced", tostring(owner) } end
local head = redis.call("GET", KEYS[2]) or ""
if head ~= ARGV[3] or (head ~= "" and ARGV[2] <= head) then return { "base", head } end
-- Branches are given out once: a newer one than the owner means that the log lost the claim with its tail.
if owner < tonumber(ARGV[1]) then redis.call("SET", KEYS[1], ARGV[1]) end
redis.call("HSET", KEYS[3], ARGV[2], ARGV[4])
if ARGV[7] ~= "" then redis.call("HSET", KEYS[4], ARGV[2], ARGV[7]) end
redis.call("HSET", KEYS[5], ARGV[2], ARGV[5])
redis.call("HSET", KEYS[6], ARGV[2], ARGV[6])
redis.call("SET", KEYS[2], ARGV[2])
hint(KEYS[7], "head")
return { "done" }
"""
)

COMMIT_ANCHOR = (
    """#!lua
-- commit_anchor(KEYS: owner, records, anchors, hints; ARGV: branch, version, anchor) -> {"done"|"fenced"|"base", ...}
"""
    + _HINT
    + """
local owner = tonumber(redis.call("GET", KEYS[1]) or "0")
if owner > tonumber(ARGV[1]) then return { "fenced", tostring(owner) } end
if redis.call("HEXISTS", KEYS[2], ARGV[2]) == 0 then return { "base", "" } end
redis.call("HSET", KEYS[3], ARGV[2], ARGV[3])
hint(KEYS[4], "anchor")
return { "done" }
"""
)

PRUNE = """#!lua flags=allow-oom
-- prune(KEYS: owner, head, records, anchors, nonces; ARGV: branch, n, n versions, anchors...) -> {"done"|"fenced", ...}
local owner = tonumber(redis.call("GET", KEYS[1]) or "0")
if owner > tonumber(ARGV[1]) then return { "fenced", tostring(owner) } end
local head = redis.call("GET", KEYS[2])
local n = tonumber(ARGV[2])
for i = 3, #ARGV do
  if ARGV[i] ~= head then
    redis.call("HDEL", KEYS[4], ARGV[i])
    if i < 3 + n then
      redis.call("HDEL", KEYS[3], ARGV[i])
      redis.call("HDEL", KEYS[5], ARGV[i])
    end
  end
end
return { "done" }
"""

PUT_ENDPOINT = """#!lua flags=allow-oom
-- put_endpoint(KEYS: owner, endpoints; ARGV: branch, rank, url) -> {"done"} or {"fenced", branch}
-- An endpoint is kept as "<branch> <url>". Those of older branches are void.
local newest = tonumber(redis.call("GET", KEYS[1]) or "0")
local held = redis.call("HGETALL", KEYS[2])
for i = 2, #held, 2 do newest = math.max(newest, tonumber(string.match(held[i], "^%d+"))) end
if newest > tonumber(ARGV[1]) then return { "fenced", tostring(newest) } end
for i = 2, #held, 2 do
  if tonumber(string.match(held[i], "^%d+")) < tonumber(ARGV[1]) then redis.call("HDEL", KEYS[2], held[i - 1]) end
end
redis.call("HSET", KEYS[2], ARGV[2], ARGV[1] .. " " .. ARGV[3])
return { "done" }
"""

REGISTER = (
    """#!lua flags=allow-oom
-- register(KEYS: servers, incarnations, states, held, seen, hints; ARGV: server, incarnation, registration, state)
-- What an earlier incarnation held is void.
"""
    + _HINT
    + """
redis.call("HSET", KEYS[1], ARGV[1], ARGV[3])
redis.call("HSET", KEYS[2], ARGV[1], ARGV[2])
redis.call("HSET", KEYS[3], ARGV[1], ARGV[4])
redis.call("HDEL", KEYS[4], ARGV[1])
redis.call("HSET", KEYS[5], ARGV[1], now_ms())
hint(KEYS[6], "server")
return { "done" }
"""
)

SAY = (
    """#!lua flags=allow-oom
-- say(KEYS: servers, incarnations, states, held, seen, hints; ARGV: server, incarnation, state or "", held or "")
-- A sign of life, with a new state and a new version if given. -> {"done"} or {"stale", current incarnation}
"""
    + _HINT
    + """
local current = redis.call("HGET", KEYS[2], ARGV[1]) or ""
if current ~= ARGV[2] then return { "stale", current } end
redis.call("HSET", KEYS[5], ARGV[1], now_ms())
if ARGV[4] ~= "" then redis.call("HSET", KEYS[4], ARGV[1], ARGV[4]) end
if ARGV[3] ~= "" then
  redis.call("HSET", KEYS[3], ARGV[1], ARGV[3])
  hint(KEYS[6], "server")
end
return { "done" }
"""
)

LEAVE = (
    """#!lua flags=allow-oom
-- leave(KEYS: servers, incarnations, states, held, seen, hints, needs; ARGV: server, incarnation)
-- A later incarnation is left alone.
"""
    + _HINT
    + """
if redis.call("HGET", KEYS[2], ARGV[1]) ~= ARGV[2] then return { "done" } end
for i = 1, 5 do redis.call("HDEL", KEYS[i], ARGV[1]) end
redis.call("HDEL", KEYS[7], ARGV[1])
hint(KEYS[6], "server")
return { "done" }
"""
)

SERVERS = """#!lua flags=no-writes
-- servers(KEYS: servers, incarnations, states, held, seen) -> {now ms, and the five hashes}, read at one moment
local time = redis.call("TIME")
local found = { time[1] * 1000 + math.floor(time[2] / 1000) }
for i = 1, 5 do found[i + 1] = redis.call("HGETALL", KEYS[i]) end
return found
"""

NEED = (
    """#!lua flags=allow-oom
-- need(KEYS: needs, hints; ARGV: server, need without its time). The time is kept while the same need is repeated.
"""
    + _HINT
    + """
local held = redis.call("HGET", KEYS[1], ARGV[1])
if held and string.sub(held, 15) == ARGV[2] then return { "done" } end
redis.call("HSET", KEYS[1], ARGV[1], string.format("%014d", now_ms()) .. ARGV[2])
hint(KEYS[2], "need")
return { "done" }
"""
)

WISH = (
    """#!lua flags=allow-oom
-- wish(KEYS: wish, hints; ARGV: wish)
"""
    + _HINT
    + """
if redis.call("GET", KEYS[1]) == ARGV[1] then return { "done" } end
redis.call("SET", KEYS[1], ARGV[1])
hint(KEYS[2], "wish")
return { "done" }
"""
)
