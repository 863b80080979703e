"""Reward pools of one scorer or a few, for tests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards.guard import FailureLimit
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.rewards.processes import FunctionScorer
from asyncrl.envs.rewards.routes import Route
from asyncrl.envs.rewards.scorer import Scorer


def row(truth: object = "right", source: str = "mine", **info: str | int) -> PromptRow:
    """A row with a question of one letter."""
    return PromptRow(0, source, ({"role": "user", "content": "q"},), truth, info)  # type: ignore[arg-type]  # plain JSON


def pool_of(*scorers: Scorer, failures: FailureLimit | None = None, route: Route | None = None) -> RewardPool:
    """A pool in which the first scorer, or a route, scores everything."""
    by_name: Mapping[str, Scorer] = {scorer.name: scorer for scorer in scorers}
    return RewardPool(scorers=by_name, routes=[route or Route.to(scorers[0].name)], failures=failures)


def function_pool(
    workers: int,
    timeout_s: float,
    file: Path,
    function: str = "compute_score",
    *,
    queue_s: float | None = None,
    batch_size: int = 64,
    failures: FailureLimit | None = None,
) -> RewardPool:
    """A pool of a user's function."""
    scorer = FunctionScorer("file", workers, timeout_s, file, function, queue_s=queue_s, batch_size=batch_size)
    return pool_of(scorer, failures=failures)


@asynccontextmanager
async def opened(pool: RewardPool) -> AsyncIterator[RewardPool]:
    """Closed at the end, whatever happens."""
    try:
        yield pool
    finally:
        pool.close()
        await pool.close_connections()
