"""Scores by content: an answer that was scored before, with the same row and by the same scorer, is not scored again.

Two that come in together are one call. Failures are never kept: the next one may succeed.
"""

import asyncio
import json
from collections import OrderedDict

from blake3 import blake3

from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards.processes import job_of
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.scorer import SCORED, Outcome, Scorer

_ENTRY_BYTES, _PART_BYTES = 400, 120
"""What an entry takes beside the names of its parts, and each part: generous, for CPython 3.11 to 3.13."""


class ScoreCache:
    """Rewards by key, within a budget; the ones used longest ago go first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = self.num_hits = self.num_misses = 0
        self._rewards: OrderedDict[bytes, Reward] = OrderedDict()

    def get(self, key: bytes) -> Reward | None:
        """The reward under a key, or None; counted either way."""
        reward = self._rewards.get(key)
        if reward is None:
            self.num_misses += 1
            return None
        self._rewards.move_to_end(key)
        self.num_hits += 1
        return reward

    def put(self, key: bytes, reward: Reward) -> None:
        """Keep a reward, if it fits the budget at all."""
        size = _size(key, reward)
        if size > self.max_bytes or key in self._rewards:
            return
        self._rewards[key] = reward
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= _size(*self._rewards.popitem(last=False))


class CachedScorer:
    """A scorer behind a cache."""

    def __init__(self, scorer: Scorer, cache: ScoreCache) -> None:
        self.name, self._scorer, self._cache = scorer.name, scorer, cache
        self._asked: dict[bytes, asyncio.Future[Outcome | None]] = {}

    async def start(self) -> None:
        """See Scorer."""
        await self._scorer.start()

    async def score(self, row: PromptRow, text: str) -> Outcome:
        """The kept reward, that of the same answer on its way, or a new one."""
        key = key_of(self.name, row, text)
        while (asked := self._asked.get(key)) is not None:
            outcome = await asyncio.shield(asked)
            if outcome is not None:  # None: whoever asked was cancelled, so this one asks
                self._cache.num_hits += 1
                return Outcome(outcome.kind, outcome.reward, cached=True)
        if (kept := self._cache.get(key)) is not None:
            return Outcome(SCORED, kept, cached=True)
        return await self._ask(key, row, text)

    def kill(self) -> None:
        """See Scorer."""
        self._scorer.kill()

    async def close(self) -> None:
        """See Scorer."""
        await self._scorer.close()

    async def _ask(self, key: bytes, row: PromptRow, text: str) -> Outcome:
        future = self._asked[key] = asyncio.get_running_loop().create_future()
        outcome: Outcome | None = None
        try:
            outcome = await self._scorer.score(row, text)
            if outcome.kind == SCORED:
                self._cache.put(key, outcome.reward)
            return outcome
        finally:
            del self._asked[key]
            future.set_result(outcome)


def key_of(scorer: str, row: PromptRow, text: str) -> bytes:
    """32 bytes that name a scorer, all that it is given of a row, and an answer."""
    given = [scorer, job_of(row, text), [dict(message) for message in row.messages]]
    return blake3(json.dumps(given, sort_keys=True).encode()).digest()


def _size(key: bytes, reward: Reward) -> int:
    parts = sum(_PART_BYTES + len(name) for name in reward.parts)
    return len(key) + _ENTRY_BYTES + parts + 4 * len(reward.answer or "")
