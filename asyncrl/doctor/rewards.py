"""Check of the scorers of rollout.reward: functions are loaded as a worker does it, keys of judges are there."""

import asyncio
from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.config.reward import RewardConfig
from asyncrl.doctor.finding import Finding
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.errors import RewardError


def check_rewards(config: Config) -> Iterator[Finding]:
    """One finding for all scorers but the table. Servers and judges are not asked: they may come up later."""
    reward = config.rollout.reward
    if reward.file is None and not any(True for _ in reward.named()):
        return
    try:
        names = asyncio.run(_loaded(reward))
    except RewardError as error:
        yield Finding("rewards", False, str(error), "See docs/rewards.md.")
        return
    yield Finding("rewards", True, ", ".join(names))


async def _loaded(reward: RewardConfig) -> list[str]:
    pool = RewardPool.of(reward)
    try:
        await pool.start()
    finally:
        pool.close()
        await pool.close_connections()
    return sorted(pool.calls)
