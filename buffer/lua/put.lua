#!lua
-- put(now_ms; ordinal, token, payload key, bytes, ranges, info, sampled tokens, on_stale, max_stale,
--   prompt, passed, scored)
-- KEYS: run cards claims open in_flight sampling waiting ready discarded trash commons reasons tokens hints pass_rates
-- INCLUDE: tokens moves
-- in_flight -> ready; or, stale on arrival, -> waiting or discarded. A repeat is `done`, any other `fenced`.
-- Returns {status, payload keys for the caller to unlink ...}.
local o, token, key, num_bytes = name_of(tonumber(ARGV[2])), ARGV[3], ARGV[4], tonumber(ARGV[5])
local card = load_card(o)
if card and card.token == token and (card.state == "ready" or card.state == "leased") then return { "done" } end
if not card or card.token ~= token or card.state ~= "in_flight" then
  -- The payload in the trash is the mark that this call was counted: a repeat finds it there.
  if redis.call("SADD", K.trash, key) == 1 and run.branch > 0 then
    count_reason("fenced")
    waste("failed/fenced", spent_of(ARGV[7]))
    write_tokens()
  end
  return { "fenced", key }
end
local oldest, newest_branch = oldest_effective(ARGV[6]) -- before the first write: it fails on what is no list of ranges
take_over_parked(card, tonumber(ARGV[8]))
note_result(o, ARGV[11], ARGV[12], ARGV[13])
card.key, card.num_bytes, card.ranges, card.info = key, num_bytes, ARGV[6], ARGV[7]
card.since_ms = now_ms()
add_bytes("resident_bytes", num_bytes)
if ARGV[9] ~= "mask" and is_late(oldest, newest_branch) then
  drop_stale(o, card, ARGV[9], tonumber(ARGV[10]))
  write_tokens()
  hint("room")
  return { "stale", unpack(dumped) }
end
make_ready(o, card, oldest)
save_card(o, card)
write_tokens()
hint("ready")
return { "ready", unpack(dumped) }
