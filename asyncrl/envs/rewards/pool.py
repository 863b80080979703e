"""Rewards for episodes: cheap rules at once, all others in a few processes, each call bounded in time.

consumes  a row and an answer, from an episode   waits for     a free process
produces  a Reward, to that episode              unblocked by  the end, or the timeout, of another call
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from asyncrl.data.rows import PromptRow
from asyncrl.data.values import Json
from asyncrl.envs.rewards.compute_score import check_sources, compute_score
from asyncrl.envs.rewards.failure import described
from asyncrl.envs.rewards.http import RewardServer, server_of
from asyncrl.envs.rewards.process import ProcessDiedEarly, RewardProcess
from asyncrl.envs.rewards.result import Reward
from asyncrl.envs.rewards.table import REWARDS
from asyncrl.errors import RewardError
from asyncrl.waits import timed

WAIT_NAME = "episode waits for a reward process"


class RewardPool:
    """Scores answers. A function that raises, hangs, crashes or returns no number costs one trajectory, never a 0.

    Use within one event loop. `counts` has calls by outcome: scored, timeout, exception, died, queue_full,
    and of reward servers unreachable, refused, bad_reply.
    """

    def __init__(
        self,
        workers: int,
        timeout_s: float,
        user_file: Path | None = None,
        user_function: str = "compute_score",
        *,
        servers: Sequence[RewardServer] = (),
        queue_s: float | None = None,
        give_up_after: int = 64,
    ) -> None:
        """
        Args:
            workers: processes at most; they start when they are needed.
            timeout_s: seconds one call may take.
            user_file: scores every row instead of the table by data source.
            user_function: its function, with verl's arguments; may be async.
            servers: score the rows of the data sources that they take, before anything else.
            queue_s: seconds to wait for a free process; None: fifty calls that all time out.
            give_up_after: failures without a success between them after which `score` raises: a function that always
                fails would otherwise mask every trajectory, and the run would learn nothing without a word.
        """
        self.timeout_s, self.user_file, self.user_function = timeout_s, user_file, user_function
        self.counts: Counter[str] = Counter()
        self._queue_s = 50 * timeout_s if queue_s is None else queue_s
        self._give_up_after, self._servers = give_up_after, servers
        self._failures_in_a_row = 0
        self._closed = False
        self._processes = [RewardProcess(user_file, user_function) for _ in range(workers)]
        # Last in, first out: a process that is warm stays warm, the others never start.
        self._idle: asyncio.LifoQueue[RewardProcess] = asyncio.LifoQueue(maxsize=workers)
        for process in self._processes:
            self._idle.put_nowait(process)

    async def start(self) -> None:
        """Load the user's file in one process, so that a broken one is refused before anything is generated.

        Raises:
            RewardError: it cannot be loaded, or has no function with the documented arguments.
        """
        if self.user_file is not None:
            process = await self._idle.get()
            try:
                await process.start()
            finally:
                self._idle.put_nowait(process)

    async def score(self, row: PromptRow, text: str) -> Reward:
        """Score the text of an answer to a row's prompt.

        Raises:
            RewardError: no rule for the row's data source, a user's file that cannot be loaded, or too many failures in
                a row; all are the configuration's fault and would hit every row.
        """
        if self._closed:
            raise RewardError("the reward pool is closed")
        if (server := server_of(self._servers, row.data_source)) is not None:
            return self._counted(await server.score(row, text))
        if self.user_file is None:
            check_sources([row.data_source])
            if REWARDS[row.data_source].inline:
                return self._counted(_inline(row, text))
        return self._counted(await self._in_process(row, text))

    def close(self) -> None:
        """End all processes at once. Calls in flight fail; later ones are refused."""
        self._closed = True
        for process in self._processes:
            process.kill()

    async def close_connections(self) -> None:
        """Close those to reward servers."""
        for server in self._servers:
            await server.close()

    async def _in_process(self, row: PromptRow, text: str) -> tuple[str, Reward]:
        job: dict[str, Json] = {
            "data_source": row.data_source,
            "solution_str": text,
            "ground_truth": row.ground_truth,
            "extra_info": dict(row.extra_info),
        }
        try:
            with timed(
                WAIT_NAME, lambda: f"{len(self._processes)} processes, all busy for up to {self.timeout_s} s each"
            ):
                async with asyncio.timeout(self._queue_s):
                    process = await self._idle.get()
        except TimeoutError:
            return "queue_full", Reward(None, f"no reward process was free for {self._queue_s:g} s")
        try:
            answer = await process.score(job, self.timeout_s)
        except TimeoutError:
            return "timeout", Reward(None, f"timeout: no reward after {self.timeout_s:g} s")
        except ProcessDiedEarly as error:
            return "died", Reward(None, f"died: {error}")
        finally:
            self._idle.put_nowait(process)
        return _reward(answer)

    def _counted(self, outcome: tuple[str, Reward]) -> Reward:
        kind, reward = outcome
        self.counts[kind] += 1
        self._failures_in_a_row = 0 if kind == "scored" else self._failures_in_a_row + 1
        if self._failures_in_a_row >= self._give_up_after:
            raise RewardError(
                f"{self._failures_in_a_row} rewards in a row failed, so there is nothing to learn from. The last one: "
                f"{reward.error}. Check rollout.reward and the ground truths (asyncrl check-data)."
            )
        return reward


def _inline(row: PromptRow, text: str) -> tuple[str, Reward]:
    try:
        return "scored", compute_score(row.data_source, text, row.ground_truth, row.extra_info)
    except Exception as error:  # a rule that stumbles over one answer masks that answer
        return "exception", Reward(None, f"exception: {error if isinstance(error, RewardError) else described(error)}")


def _reward(answer: dict[str, Json]) -> tuple[str, Reward]:
    if "failure" in answer:
        return "exception", Reward(None, f"exception: {answer['failure']}")
    value, parts = answer["value"], answer["parts"]
    assert isinstance(value, int | float)
    assert isinstance(parts, dict)
    return "scored", Reward(
        float(value), None, {name: float(x) for name, x in parts.items() if isinstance(x, int | float)}
    )
