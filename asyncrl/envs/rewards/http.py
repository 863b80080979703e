"""A reward model behind a URL: POST an answer with its row as JSON, get its score back.

The request is verl's arguments, {"data_source", "solution_str", "ground_truth", "extra_info"}, and the row's messages
as "prompt". The reply is {"score": number, ...}; further numbers are parts of the reward. Whatever else comes, or comes
too late, is a reward that failed, with its reason: it masks the answer and is counted, and never becomes a number.
"""

import time
from collections.abc import Callable

from asyncrl.config.reward import RewardServerConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards.endpoint import Endpoint, EndpointSettings, Scored
from asyncrl.envs.rewards.limits import MinuteLimits, Share
from asyncrl.envs.rewards.processes import job_of
from asyncrl.envs.rewards.result import reward_from
from asyncrl.envs.rewards.scorer import Outcome


class RewardServer:
    """One reward server. Bound to the event loop that it is used in.

    Args:
        name: in tables and messages.
        config: its address and bounds.
        timeout_s: seconds one request may take, if the config does not say.
        share: the part of its limits per minute that this worker has. None: all.
        clock: seconds, monotonic; what a minute is told by.
    """

    def __init__(
        self,
        name: str,
        config: RewardServerConfig,
        timeout_s: float,
        share: Share | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._endpoint = Endpoint(
            EndpointSettings(
                url=config.url,
                timeout_s=config.timeout_s or timeout_s,
                max_attempts=config.max_attempts,
                in_flight=config.in_flight,
                limits=MinuteLimits(name, config.requests_per_minute, None, clock, share=share),
            )
        )

    async def start(self) -> None:
        """Nothing to prepare: a server may come up later than its run."""

    async def score(self, row: PromptRow, text: str) -> Outcome:
        """Its score, or how it failed."""
        body = {**job_of(row, text), "prompt": [dict(message) for message in row.messages]}
        return await self._endpoint.ask(body, lambda reply: Scored(reward_from(reply, self._endpoint.shown)))

    def kill(self) -> None:
        """Nothing was started."""

    async def close(self) -> None:
        """Close connections; requests in flight fail."""
        await self._endpoint.close()
