#!lua flags=allow-oom
-- give_back(now_ms; branch, nonce, reason, max_attempts, max_dead_bytes, ordinal ...)
-- KEYS: run cards open waiting ready leased taken dead dead_kept filtered trash commons reasons tokens hints
-- INCLUDE: tokens moves
-- leased -> ready (no reason), waiting or dead (corrupt_payload), filtered (any other); trained: stays leased at step -1.
-- Returns {status, branch, trained, evaluation, payload keys for the caller to unlink ...}.
local status, reason, now = fence(tonumber(ARGV[2]), ARGV[3]), ARGV[4], now_ms()
if status ~= "ok" then return { status, run.branch, run.trained, "" } end
for i = 7, #ARGV do
  local o = name_of(tonumber(ARGV[i]))
  local card = load_card(o)
  if card and card.state == "leased" then
    redis.call("SREM", K.taken, o)
    if reason == "" then
      make_ready(o, card, (oldest_effective(card.ranges)))
      save_card(o, card)
    elseif reason == "trained" then
      redis.call("ZADD", K.leased, -1, o)
    elseif reason == "corrupt_payload" then
      count_reason(reason)
      spend("failed/" .. reason, spent_of(card.info))
      if fail(o, card, reason, "its payload was missing or damaged", now, false, tonumber(ARGV[5]), tonumber(ARGV[6]))
          == "waiting" then
        card.token = ""
        save_card(o, card)
      end
    else
      count_reason(reason)
      spend("filtered/" .. reason, spent_of(card.info))
      close(o, card, "filtered")
    end
  end
end
write_tokens()
hint("room")
local answer = { status, run.branch, run.trained, "" }
for _, key in ipairs(dumped) do answer[#answer + 1] = key end
return answer
