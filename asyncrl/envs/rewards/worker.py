"""The process that scores answers, one after the other, in its main thread.

consumes  jobs (the arguments of compute_score), from the pool's socket
produces  `started` when a job's function is ready to be called, then its reward or its failure

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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from asyncrl.data.values import Json
from asyncrl.envs.rewards.compute_score import compute_score
from asyncrl.envs.rewards.failure import described
from asyncrl.envs.rewards.frames import frame, receive_blocking
from asyncrl.envs.rewards.result import Reward, reward_from
from asyncrl.envs.rewards.table import REWARDS
from asyncrl.envs.rewards.user_file import load_reward
from asyncrl.errors import RewardError

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve until the pool closes the socket. Arguments: its descriptor and, if any, the user's file and function."""
    _die_with_parent()
    connection = socket.socket(fileno=int(arguments[0]))
    try:
        user = load_reward(Path(arguments[1]), arguments[2]) if len(arguments) > 1 else None
    except RewardError as error:
        connection.sendall(frame({"fatal": str(error)}))
        return error.exit_code
    connection.sendall(frame({"ready": True}))
    jobs: SimpleQueue[dict[str, Json]] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, jobs), daemon=True).start()
    prepared: set[str] = set()
    with asyncio.Runner() as runner:
        while True:
            job = jobs.get()
            if user is None:
                _prepare(str(job["data_source"]), prepared)
            connection.sendall(frame({"started": True}))
            connection.sendall(frame(_answer(partial(_score, job, user, runner))))


def _read(connection: socket.socket, jobs: "SimpleQueue[dict[str, Json]]") -> None:
    # In a thread of its own, so that a pool that is gone is noticed while a function hangs in the main thread.
    while (job := receive_blocking(connection)) is not None:
        jobs.put(job)
    os._exit(0)


def _prepare(data_source: str, prepared: set[str]) -> None:
    rule = REWARDS.get(data_source)
    if rule is not None and rule.prepare is not None and data_source not in prepared:
        rule.prepare()
    prepared.add(data_source)


def _answer(score: Callable[[], Reward]) -> dict[str, Json]:
    try:
        reward = score()
    except BaseException as error:  # user code: SystemExit and the like must cost one reward, not the process
        return {"failure": str(error) if isinstance(error, RewardError) else described(error)}
    return {"value": reward.value, "parts": dict(reward.parts)}


def _score(job: dict[str, Json], user: Callable[..., object] | None, runner: asyncio.Runner) -> Reward:
    if user is None:
        return compute_score(str(job["data_source"]), str(job["solution_str"]), job["ground_truth"], job["extra_info"])
    returned = user(**job)
    if inspect.iscoroutine(returned):
        returned = runner.run(returned)
    return reward_from(returned, getattr(user, "__name__", "the reward function"))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        # A function that holds the interpreter lock keeps the reading thread from noticing; the kernel does not care.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
