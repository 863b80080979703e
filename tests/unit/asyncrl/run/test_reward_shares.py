"""Workers that share limits per minute: counted by their reports, whatever else reports, and by the buffer's clock."""

import pytest

from asyncrl.config import RolloutConfig
from asyncrl.config.reward import JudgeConfig, RewardConfig, RewardServerConfig
from asyncrl.envs.rewards.limits import Share
from asyncrl.run import reward_shares
from asyncrl.run.reward_shares import ALIVE_MS, limit_sharing, num_alive
from tests.support.buffer_run import BufferRun
from tests.support.event_loop import in_event_loop

PLAYING = {"episodes_playing": 3.0}


def limited(workers: int = 1) -> RolloutConfig:
    server = RewardServerConfig(url="http://rm/score", requests_per_minute=60)
    return RolloutConfig(workers=workers, reward=RewardConfig(servers=(server,)))


@in_event_loop
async def test_every_worker_that_lives_has_an_equal_part_wherever_it_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reward_shares, "LOOK_EVERY_S", 0.0)
    run, share = BufferRun(None), Share()
    look = limit_sharing(limited(), run.buffer, "worker-0.1", share)
    assert look is not None
    await look()
    assert share.num_workers == 1
    run.buffer.report("trainer", {"step": 1.0})
    for name in ("worker-0.1", "worker-0.77", "gateway.host.5"):
        run.buffer.report(name, PLAYING)
    await look()
    assert share.num_workers == 3
    run.passes(ALIVE_MS / 1000 + 1)
    run.buffer.report("worker-0.1", PLAYING)
    run.buffer.report("gateway.host.5", PLAYING)
    await look()
    assert share.num_workers == 2, "one has ended"
    run.close()


@in_event_loop
async def test_a_part_is_never_larger_than_this_machines_workers_leave_and_is_looked_at_seldom() -> None:
    run, share = BufferRun(None), Share(4)
    look = limit_sharing(limited(workers=4), run.buffer, "worker-0.1", share)
    assert look is not None
    await look()
    assert share.num_workers == 4, "three of them have not reported yet"
    for number in range(9):
        run.buffer.report(f"worker-{number}.1", PLAYING)
    await look()
    assert share.num_workers == 4, "it looked a moment ago"
    run.close()


def test_without_limits_nobody_looks() -> None:
    run = BufferRun(None)
    assert limit_sharing(RolloutConfig(), run.buffer, "worker-0.1", Share()) is None
    judge = JudgeConfig(name="j", url="http://judge/v1", model="m", tokens_per_minute=1000)
    assert limit_sharing(RolloutConfig(reward=RewardConfig(judges=(judge,))), run.buffer, "w", Share()) is not None
    run.close()


def test_who_has_not_reported_counts_itself() -> None:
    assert num_alive({}, "worker-0.1") == 1
    assert num_alive({"worker-1.1": {**PLAYING, "at_ms": 5.0}}, "worker-0.1") == 2
