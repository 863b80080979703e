"""The process that scores answers, one call after the other, in its main thread.

consumes  jobs (the arguments of compute_score for one answer or more), from the pool's socket
produces  `started` when the function is ready to be called, then a reward or a failure for each answer

It may hang, crash or be killed at any time: the pool starts another. It dies with the pool's process.
"""

import asyncio
import ctypes
import inspect
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from asyncrl.data.values import Json
from asyncrl.envs.rewards.compute_score import compute_score
from asyncrl.envs.rewards.failure import described
from asyncrl.envs.rewards.frames import frame, receive_blocking
from asyncrl.envs.rewards.result import Reward, reward_from, rewards_in
from asyncrl.envs.rewards.table import REWARDS
from asyncrl.envs.rewards.user_file import FOR_MANY, FOR_ONE, UserReward, load_reward
from asyncrl.errors import RewardError

_PR_SET_PDEATHSIG = 1
Job = dict[str, Json]
"""The arguments of compute_score for one answer."""


def main(arguments: list[str]) -> int:
    """Serve until the pool closes the socket. Arguments: its descriptor and, if any, the user's file and function."""
    _die_with_parent()
    connection = socket.socket(fileno=int(arguments[0]))
    try:
        user = load_reward(Path(arguments[1]), arguments[2]) if len(arguments) > 1 else None
    except RewardError as error:
        connection.sendall(frame({"fatal": str(error)}))
        return error.exit_code
    connection.sendall(frame({"ready": True, "for_many": user is not None and user.for_many}))
    jobs: SimpleQueue[list[Job]] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, jobs), daemon=True).start()
    prepared: set[str] = set()
    with asyncio.Runner() as runner:
        while True:
            job = jobs.get()
            if user is None:
                for one in job:
                    _prepare(str(one["data_source"]), prepared)
            connection.sendall(frame({"started": True}))
            start_s = time.monotonic()
            answers = _answers(job, user, runner)
            connection.sendall(frame({"answers": answers, "took_s": time.monotonic() - start_s}))


def _read(connection: socket.socket, jobs: "SimpleQueue[list[Job]]") -> None:
    # In a thread of its own, so that a pool that is gone is noticed while a function hangs in the main thread.
    while (message := receive_blocking(connection)) is not None:
        several = message["jobs"]
        assert isinstance(several, list)
        jobs.put([job for job in several if isinstance(job, dict)])
    os._exit(0)


def _prepare(data_source: str, prepared: set[str]) -> None:
    rule = REWARDS.get(data_source)
    if rule is not None and rule.prepare is not None and data_source not in prepared:
        rule.prepare()
    prepared.add(data_source)


def _answers(jobs: list[Job], user: UserReward | None, runner: asyncio.Runner) -> list[Json]:
    if user is None or not user.for_many:
        return [_answer(partial(_score, job, user, runner)) for job in jobs]
    lists = {many: [job[one] for job in jobs] for one, many in zip(FOR_ONE, FOR_MANY, strict=True)}
    try:
        returned = rewards_in(_called(user, lists, runner), len(jobs), user.name)
    except BaseException as error:
        return [_failure(error)] * len(jobs)
    return [_answer(partial(reward_from, one, f"{user.name}[{i}]")) for i, one in enumerate(returned)]


def _answer(score: Callable[[], Reward]) -> Json:
    try:
        reward = score()
    except BaseException as error:  # user code: SystemExit and the like must cost one reward, not the process
        return _failure(error)
    return {"value": reward.value, "parts": dict(reward.parts), "answer": reward.answer}


def _failure(error: BaseException) -> Json:
    return {"failure": str(error) if isinstance(error, RewardError) else described(error)}


def _score(job: Job, user: UserReward | None, runner: asyncio.Runner) -> Reward:
    if user is None:
        return compute_score(str(job["data_source"]), str(job["solution_str"]), job["ground_truth"], job["extra_info"])
    return reward_from(_called(user, job, runner), user.name)


def _called(user: UserReward, arguments: Mapping[str, object], runner: asyncio.Runner) -> object:
    returned = user.call(**arguments)
    return runner.run(returned) if inspect.iscoroutine(returned) else returned


def _die_with_parent() -> None:
    if sys.platform == "linux":
        # A function that holds the interpreter lock keeps the reading thread from noticing; the kernel does not care.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
