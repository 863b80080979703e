#!lua flags=allow-oom
-- commit(now_ms; branch, ledger, nonce)
-- KEYS: run cards claims open in_flight sampling waiting ready leased dead dead_kept consumed filtered discarded trash tokens hints
-- INCLUDE: tokens moves closing
-- All that the checkpoint names, in whatever state -> its kind. The watermark moves here only.
-- Returns {status, branch, trained, evaluation, payload keys for the caller to unlink ...}.
local status = fence(tonumber(ARGV[2]), ARGV[4])
if status == "ok" and ledger.watermark >= run.watermark then
  close_named()
  align_tokens()
  fill_gaps(now_ms())
  move_watermark()
  hint("room")
end
local answer = { status, run.branch, run.trained, "" }
for _, key in ipairs(dumped) do answer[#answer + 1] = key end
return answer
