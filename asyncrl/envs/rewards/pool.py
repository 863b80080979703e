"""Rewards for episodes: each answer goes to the scorers of its data source, and comes back as one reward.

consumes  a row and an answer, from an episode   waits for     its scorers, all at the same time
produces  a Reward, to that episode              unblocked by  the slowest of them, or its timeout

Scorers share nothing: one that hangs, crashes or is out of its limits keeps those alone who need it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from asyncrl.config.reward import RewardConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards.guard import FailureGuard, FailureLimit
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.scorer import Outcome, Scorer
from asyncrl.errors import RewardError
from asyncrl.report.scorers import ScorerCalls

if TYPE_CHECKING:
    from asyncrl.envs.rewards.limits import Share
    from asyncrl.envs.rewards.routes import Route


@dataclass
class _Watched:
    """A scorer with what is known of its calls."""

    scorer: Scorer
    guard: FailureGuard
    calls: ScorerCalls = field(default_factory=ScorerCalls)


class RewardPool:
    """Scores answers. A function that raises, hangs, crashes or returns no number costs one trajectory, never a 0.

    Use within one event loop.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout_s: float = 30.0,
        *,
        scorers: Mapping[str, Scorer] | None = None,
        routes: "Sequence[Route] | None" = None,
        failures: FailureLimit | None = None,
    ) -> None:
        """
        Args:
            workers, timeout_s: of the rules by data source, where neither scorers nor routes are given.
            scorers: by name.
            routes: which of them score what; one takes any data source.
            failures: when a scorer fails too often.
        """
        # httpx takes a third of a second to import, and every scoring process imports this file.
        from asyncrl.envs.rewards.limits import Share
        from asyncrl.envs.rewards.routes import routes_of, scorers_of

        plain = RewardConfig(workers=workers, timeout_s=float(timeout_s))
        limit = failures or FailureLimit()
        self._routes = list(routes_of(plain) if routes is None else routes)
        found = scorers_of(plain, Share()) if scorers is None else scorers
        self._scorers = {name: _Watched(scorer, FailureGuard(name, limit)) for name, scorer in found.items()}
        self._closed = False

    @classmethod
    def of(cls, config: RewardConfig, *, share: "Share | None" = None) -> "RewardPool":
        """The rewards of a run.

        Args:
            config: the rewards of the run.
            share: the part of the limits per minute that this worker has. None: all.
        Raises:
            RewardError: a judge's key is not in the environment.
        """
        from asyncrl.envs.rewards.limits import Share
        from asyncrl.envs.rewards.routes import routes_of, scorers_of

        return cls(
            scorers=scorers_of(config, share or Share()),
            routes=routes_of(config),
            failures=FailureLimit(config.max_failure_share, config.failure_window),
        )

    @property
    def counts(self) -> Counter[str]:
        """Calls by how they went, of all scorers together."""
        return sum((Counter(watched.calls.outcomes) for watched in self._scorers.values()), Counter())

    @property
    def calls(self) -> dict[str, ScorerCalls]:
        """What is known of the calls of each scorer, by name."""
        return {name: watched.calls for name, watched in self._scorers.items()}

    async def start(self) -> None:
        """Make every scorer ready, so that a broken one is refused before anything is generated.

        Raises:
            RewardError: a user's file cannot be loaded, or has no function with the documented arguments.
        """
        for watched in self._scorers.values():
            await watched.scorer.start()

    async def score(self, row: PromptRow, text: str) -> Reward:
        """Score the text of an answer to a row's prompt.

        Raises:
            RewardError: no rule for the row's data source, a user's file that cannot be loaded, or a scorer that fails
                too often; all would hit every row.
        """
        if self._closed:
            raise RewardError("the reward pool is closed")
        route = next(route for route in self._routes if route.takes(row.data_source))
        if len(route.scorers) == 1:
            ((name, _),) = route.scorers
            reward = (await self._ask(name, row, text)).reward
            return weighted(route, [reward]) if route.is_sum else reward
        found = await asyncio.gather(*(self._ask(name, row, text) for name, _ in route.scorers), return_exceptions=True)
        for outcome in found:
            if isinstance(outcome, BaseException):
                raise outcome
        rewards = [outcome.reward for outcome in found if isinstance(outcome, Outcome)]
        return weighted(route, rewards)

    def close(self) -> None:
        """End all processes at once. Calls in flight fail; later ones are refused."""
        self._closed = True
        for watched in self._scorers.values():
            watched.scorer.kill()

    async def close_connections(self) -> None:
        """Close those to servers, and wait for what was killed."""
        for watched in self._scorers.values():
            await watched.scorer.close()

    async def _ask(self, name: str, row: PromptRow, text: str) -> Outcome:
        watched, start = self._scorers[name], time.monotonic()
        outcome = await watched.scorer.score(row, text)
        if outcome.cached:
            watched.calls.num_cached += 1
        else:
            watched.calls.add(outcome.kind, time.monotonic() - start, outcome.reward.error or "")
            watched.guard.note(outcome)
        return outcome


def weighted(route: "Route", rewards: Sequence[Reward]) -> Reward:
    """The sum of scores by their weights; each score is a part under its scorer's name, with its own parts below it.

    If one failed, the reward failed: what is left is on another scale, and often higher.
    """
    parts: dict[str, float] = {}
    total = 0.0
    for (name, weight), reward in zip(route.scorers, rewards, strict=True):
        if reward.value is None:
            return Reward(None, f"{name}: {reward.error}")
        parts[name] = reward.value
        parts |= {f"{name}/{part}": value for part, value in reward.parts.items()}
        total += weight * reward.value
    # All of them read the same text: whoever knows what it says speaks for it.
    said = next((reward.answer for reward in rewards if reward.answer is not None), None)
    return Reward(total, None, parts, said)
