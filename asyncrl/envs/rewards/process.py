"""One scoring process as its scorer sees it: started when needed, killed when it is late."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from asyncrl.data.values import Json
from asyncrl.envs.rewards.frames import frame, receive
from asyncrl.errors import RewardError

START_S = 120.0  # imports only; a machine that starts many processes at once takes long
REAP_S = 1.0  # a killed process is gone within this unless the kernel is busy; later it is reaped by the next start


class ProcessDiedEarly(Exception):
    """The process ended while it scored."""


class RewardProcess:
    """A place for a process. Not for two calls at once; the pool hands it out."""

    def __init__(self, user_file: Path | None, user_function: str) -> None:
        self.is_for_many = False
        """Whether its function takes many answers; known once it has started."""
        self._arguments = [] if user_file is None else [str(user_file), user_function]
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def start(self) -> None:
        """Start the process if there is none, and wait until it has loaded what it needs.

        Raises:
            RewardError: the user's file cannot be used, or the process does not come up.
        """
        if self._streams is not None:
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            self._process = self._spawn(theirs.fileno())
        finally:
            theirs.close()
        self._streams = await asyncio.open_connection(sock=ours)
        try:
            async with asyncio.timeout(START_S):
                answer = await receive(self._streams[0])
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            self.kill()
            raise RewardError(
                f"a process for rewards did not start ({type(error).__name__}); its own messages are above"
            ) from None
        except asyncio.CancelledError:
            self.kill()
            raise
        if "fatal" in answer:
            self.kill()
            raise RewardError(str(answer["fatal"]))
        self.is_for_many = answer.get("for_many") is True

    async def score(self, jobs: Sequence[Mapping[str, Json]], timeout_s: float) -> tuple[list[dict[str, Json]], float]:
        """Score answers: of each `value` and `parts`, or `failure`; and the seconds that the function took for them.

        Args:
            jobs: the arguments of compute_score for each answer. A function for one is called for one after the other.
            timeout_s: seconds from the first call of the function on; starting and importing do not count.
        Raises:
            TimeoutError: the function took longer; its process is killed.
            ProcessDiedEarly: the process ended by itself, or was ended by somebody else.
            ValueError: the answers are too large for a message, or hold what JSON cannot.
            RewardError: see start.
        """
        message = frame({"jobs": [dict(job) for job in jobs]})
        await self.start()
        assert self._streams is not None
        reader, writer = self._streams
        try:
            writer.write(message)
            await writer.drain()
            async with asyncio.timeout(START_S):
                await receive(reader)
            async with asyncio.timeout(timeout_s):
                reply = await receive(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            code = self.kill()
            raise ProcessDiedEarly(f"the scoring process ended with code {code}") from None
        except BaseException:  # a timeout, or the caller was cancelled: an answer still to come would be the next one's
            self.kill()
            raise
        answers, took_s = reply["answers"], reply["took_s"]
        assert isinstance(answers, list)
        assert len(answers) == len(jobs)
        assert isinstance(took_s, float)
        return [answer for answer in answers if isinstance(answer, dict)], took_s

    def _spawn(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "asyncrl.envs.rewards.worker", str(descriptor), *self._arguments],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the pool's business, and a kill reaches what the function started
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )

    def kill(self) -> int | None:
        """End the process and all it started, at once. Returns its exit code if it is known yet."""
        process, streams = self._process, self._streams
        self._process = self._streams = None
        if streams is not None:
            streams[1].transport.abort()
        if process is None:
            return None
        with suppress(ProcessLookupError):  # it has ended and been reaped
            os.killpg(process.pid, signal.SIGKILL)
        try:
            return process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return None
