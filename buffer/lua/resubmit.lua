#!lua flags=allow-oom
-- resubmit(now_ms; ordinal, ...)
-- KEYS: run cards open waiting dead dead_kept trash reasons hints
-- INCLUDE: tokens moves
-- dead -> waiting, as if nothing had gone wrong yet. Returns {{those that were dead}, {payload keys to unlink}}.
local found = {}
for i = 2, #ARGV do
  local o = name_of(tonumber(ARGV[i]))
  if redis.call("ZSCORE", K.dead, o) then
    local card = load_card(o)
    wait(o, card)
    card.failures, card.stales, card.excused, card.poison = 0, 0, 0, 0
    card.token, card.reason, card.error = "", "", ""
    save_card(o, card)
    count_reason("resubmitted")
    found[#found + 1] = tonumber(o)
  end
end
if #found > 0 then hint("room") end
return { found, dumped }
