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

_OWNER = """
-- owner, and whether `branch` may not write: an older one, or claimed by another start than `nonce`. No nonce: a client
-- that claimed nothing.
local function owner_of(key, branch, nonce)
  local held, by = string.match(redis.call("GET", key) or "0", "^(%d+) ?(.*)$")
  held, branch = tonumber(held), tonumber(branch)
  return held, held > branch or (held == branch and nonce ~= "" and nonce ~= by)
end
"""

CLAIM = (
    """#!lua flags=allow-oom
-- claim(KEYS: owner, hints; ARGV: branch, nonce) -> {"done"} or {"fenced", owner}
"""
    + _HINT
    + _OWNER
    + """
local owner = owner_of(KEYS[1], ARGV[1], "")
if owner > tonumber(ARGV[1]) then return { "fenced", tostring(owner) } end
redis.call("SET", KEYS[1], ARGV[1] .. " " .. ARGV[2])
hint(KEYS[2], "head")
return { "done" }
"""
)

FLIP = (
    """#!lua
-- flip(KEYS: owner, head, records, anchors, nonces, digests, hints;
--      ARGV: branch, claim, version, base or "", record, nonce, digest, anchor or "")
-- -> {"done"}, {"fenced", owner} or {"base", head}. A repeat is recognised by its nonce before anything else.
"""
    + _HINT
    + _OWNER
    + """
local version = ARGV[3]
if redis.call("HGET", KEYS[5], version) == ARGV[6] then return { "done" } end
local owner, is_fenced = owner_of(KEYS[1], ARGV[1], ARGV[2])
if version ~= "00000000000000000000" and is_fenced then return { "fenced", tostring(owner) } end
local head = redis.call("GET", KEYS[2]) or ""
if head ~= ARGV[4] or (head ~= "" and version <= head) then return { "base", head } end
-- Branches are given out once: a newer one than the owner means that the log lost the claim with its tail.
if owner < tonumber(ARGV[1]) then redis.call("SET", KEYS[1], ARGV[1] .. " " .. ARGV[2]) end
redis.call("HSET", KEYS[3], version, ARGV[5])
if ARGV[8] ~= "" then redis.call("HSET", KEYS[4], version, ARGV[8]) end
redis.call("HSET", KEYS[5], version, ARGV[6])
redis.call("HSET", KEYS[6], version, ARGV[7])
redis.call("SET", KEYS[2], version)
hint(KEYS[7], "head")
return { "done" }
"""
)

COMMIT_ANCHOR = (
    """#!lua
-- commit_anchor(KEYS: owner, records, anchors, hints; ARGV: branch, claim, version, anchor)
-- -> {"done"|"fenced"|"base", ...}
"""
    + _HINT
    + _OWNER
    + """
local owner, is_fenced = owner_of(KEYS[1], ARGV[1], ARGV[2])
if is_fenced then return { "fenced", tostring(owner) } end
if redis.call("HEXISTS", KEYS[2], ARGV[3]) == 0 then return { "base", "" } end
redis.call("HSET", KEYS[3], ARGV[3], ARGV[4])
hint(KEYS[4], "anchor")
return { "done" }
"""
)

COMMIT_MERGED = (
    """#!lua
-- commit_merged(KEYS: owner, records, merged; ARGV: branch, claim, version, base, merged delta)
-- -> {"done"|"fenced"|"base", ...}
"""
    + _OWNER
    + """
local owner, is_fenced = owner_of(KEYS[1], ARGV[1], ARGV[2])
if is_fenced then return { "fenced", tostring(owner) } end
for i = 3, 4 do
  if redis.call("HEXISTS", KEYS[2], ARGV[i]) == 0 then return { "base", "" } end
end
redis.call("HSET", KEYS[3], ARGV[3] .. "-" .. ARGV[4], ARGV[5])
return { "done" }
"""
)

PRUNE = (
    """#!lua flags=allow-oom
-- prune(KEYS: owner, head, records, anchors, nonces, merged;
--       ARGV: branch, claim, n, m, n versions, m merged deltas, anchors...) -> {"done"|"fenced", ...}
"""
    + _OWNER
    + """
local owner, is_fenced = owner_of(KEYS[1], ARGV[1], ARGV[2])
if is_fenced then return { "fenced", tostring(owner) } end
local head, n, m, gone = redis.call("GET", KEYS[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), {}
for i = 5, #ARGV do
  if i >= 5 + n and i < 5 + n + m then
    redis.call("HDEL", KEYS[6], ARGV[i])
  elseif ARGV[i] ~= head then
    redis.call("HDEL", KEYS[4], ARGV[i])
    if i < 5 + n then
      gone[ARGV[i]] = true
      redis.call("HDEL", KEYS[3], ARGV[i])
      redis.call("HDEL", KEYS[5], ARGV[i])
    end
  end
end
for _, name in ipairs(redis.call("HKEYS", KEYS[6])) do
  if gone[string.sub(name, 1, 20)] or gone[string.sub(name, 22)] then redis.call("HDEL", KEYS[6], name) end
end
return { "done" }
"""
)

PUT_ENDPOINT = (
    """#!lua flags=allow-oom
-- put_endpoint(KEYS: owner, endpoints; ARGV: branch, rank, url) -> {"done"} or {"fenced", branch}
-- An endpoint is kept as "<branch> <url>". Those of older branches are void.
"""
    + _OWNER
    + """
local newest = owner_of(KEYS[1], ARGV[1], "")
local held = redis.call("HGETALL", KEYS[2])
for i = 2, #held, 2 do newest = math.max(newest, tonumber(string.match(held[i], "^%d+"))) end
if newest > tonumber(ARGV[1]) then return { "fenced", tostring(newest) } end
for i = 2, #held, 2 do
  if tonumber(string.match(held[i], "^%d+")) < tonumber(ARGV[1]) then redis.call("HDEL", KEYS[2], held[i - 1]) end
end
redis.call("HSET", KEYS[2], ARGV[2], ARGV[1] .. " " .. ARGV[3])
return { "done" }
"""
)

PUT_PIN = (
    """#!lua flags=allow-oom
-- put_pin(KEYS: owner, pin, hints; ARGV: branch, claim, pin or "") -> {"done"} or {"fenced", branch}
-- A pin is kept as "<branch> <pin>". That of another branch than the owner's is void.
"""
    + _HINT
    + _OWNER
    + """
local owner, is_fenced = owner_of(KEYS[1], ARGV[1], ARGV[2])
if is_fenced then return { "fenced", tostring(owner) } end
redis.call("SET", KEYS[2], ARGV[1] .. " " .. ARGV[3])
hint(KEYS[3], "pin")
return { "done" }
"""
)

REGISTER = (
    """#!lua flags=allow-oom
-- register(KEYS: servers, incarnations, states, held, seen, since, notes, vitals, hints;
--          ARGV: server, incarnation, registration, state, milliseconds after which the silent are forgotten)
-- What an earlier incarnation held is void.
"""
    + _HINT
    + """
local server, now = ARGV[1], now_ms()
local seen = redis.call("HGETALL", KEYS[5])
for i = 1, #seen, 2 do
  if now - tonumber(seen[i + 1]) > tonumber(ARGV[5]) then
    for key = 1, 8 do redis.call("HDEL", KEYS[key], seen[i]) end
  end
end
for _, key in ipairs({ 4, 7, 8 }) do redis.call("HDEL", KEYS[key], server) end
redis.call("HSET", KEYS[1], server, ARGV[3])
redis.call("HSET", KEYS[2], server, ARGV[2])
redis.call("HSET", KEYS[3], server, ARGV[4])
redis.call("HSET", KEYS[5], server, now)
redis.call("HSET", KEYS[6], server, now)
hint(KEYS[9], "server")
return { "done" }
"""
)

SAY = (
    """#!lua flags=allow-oom
-- say(KEYS: servers, incarnations, states, held, seen, since, notes, vitals, hints;
--     ARGV: server, incarnation, state or "", held or "", reason, vitals or "")
-- A sign of life; with a new state and its reason, a new version, and vitals, if given.
-- -> {"done"} or {"stale", current incarnation}
"""
    + _HINT
    + """
local server, now = ARGV[1], now_ms()
local current = redis.call("HGET", KEYS[2], server) or ""
if current ~= ARGV[2] then return { "stale", current } end
redis.call("HSET", KEYS[5], server, now)
if ARGV[4] ~= "" then redis.call("HSET", KEYS[4], server, ARGV[4]) end
if ARGV[6] ~= "" then redis.call("HSET", KEYS[8], server, ARGV[6]) end
if ARGV[3] ~= "" then
  if redis.call("HGET", KEYS[3], server) ~= ARGV[3] then redis.call("HSET", KEYS[6], server, now) end
  redis.call("HSET", KEYS[3], server, ARGV[3])
  redis.call("HSET", KEYS[7], server, ARGV[5])
  hint(KEYS[9], "server")
end
return { "done" }
"""
)

LEAVE = (
    """#!lua flags=allow-oom
-- leave(KEYS: servers, incarnations, states, held, seen, since, notes, vitals, hints, needs; ARGV: server, incarnation)
-- A later incarnation is left alone.
"""
    + _HINT
    + """
if redis.call("HGET", KEYS[2], ARGV[1]) ~= ARGV[2] then return { "done" } end
for i = 1, 8 do redis.call("HDEL", KEYS[i], ARGV[1]) end
redis.call("HDEL", KEYS[10], ARGV[1])
hint(KEYS[9], "server")
return { "done" }
"""
)

SERVERS = """#!lua flags=no-writes
-- servers(KEYS: servers, incarnations, states, held, seen, since, notes, vitals)
-- -> {now ms, and the eight hashes}, read at one moment
local time = redis.call("TIME")
local found = { time[1] * 1000 + math.floor(time[2] / 1000) }
for i = 1, 8 do found[i + 1] = redis.call("HGETALL", KEYS[i]) end
return found
"""

ASK = (
    """#!lua flags=allow-oom
-- ask(KEYS: orders or adoptions, hints; ARGV: server, what or "" to take it back, only if it is this or "")
"""
    + _HINT
    + """
if ARGV[3] ~= "" and redis.call("HGET", KEYS[1], ARGV[1]) ~= ARGV[3] then return { "done" } end
if ARGV[2] == "" then
  redis.call("HDEL", KEYS[1], ARGV[1])
else
  redis.call("HSET", KEYS[1], ARGV[1], ARGV[2])
end
hint(KEYS[2], "order")
return { "done" }
"""
)

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
