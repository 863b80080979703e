"""Our side of the bridge: the process that plays a verifiers environment, and what it says to each episode."""

import asyncio
import json
import logging
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from asyncrl import waits
from asyncrl.config import VerifiersConfig
from asyncrl.data import verifiers_bridge
from asyncrl.data.values import Json
from asyncrl.errors import ConfigError

log = logging.getLogger(__name__)

BRIDGE = Path(verifiers_bridge.__file__)
END_S = 10.0
"""Seconds that the process gets to end by itself once its input is closed."""
WAIT_NAME = "episode waits for its environment"
KEY = "rollout.verifiers"
Reply = Mapping[str, Json]


class BridgeError(Exception):
    """The process is gone, late, or says that an episode failed."""


class VerifiersProcess:
    """The process, once it has loaded its environment. Episodes are told apart by ids of ours.

    ended: why nothing more is to be had from it; None: it lives.
    """

    def __init__(self, process: Process, config: VerifiersConfig) -> None:
        self._process, self._config = process, config
        self._replies: dict[str | None, asyncio.Queue[Reply]] = {None: asyncio.Queue()}
        self._reading = asyncio.create_task(self._read())
        self._heard_s = time.monotonic()
        self.ended: str | None = None

    @classmethod
    async def start(cls, config: VerifiersConfig, max_turns: int) -> "VerifiersProcess":
        """Start it and load the environment.

        Args:
            max_turns: of the model in an episode, at most.
        Raises:
            ConfigError: no environment is named, its Python cannot be started, or it cannot be loaded.
        """
        if config.environment is None:
            raise ConfigError(f"{KEY}.environment is not set: name the environment, as for verifiers.load_environment.")
        python = str(config.python or sys.executable)
        try:
            process = await asyncio.create_subprocess_exec(
                *(python, *verifiers_bridge.OPTIONS, str(BRIDGE)),
                stdin=PIPE,
                stdout=PIPE,
                limit=verifiers_bridge.LINE_BYTES,
                env=verifiers_bridge.environment(os.environ),
            )
        except OSError as error:
            raise ConfigError(f"{KEY}.python = {python} cannot be started: {error.strerror or error}.") from error
        started = cls(process, config)
        try:
            args: Json = json.loads(config.args)
            await started.send("load", environment=config.environment, args=args, max_turns=max_turns)
            loaded = await started.reply(None, config.start_timeout_s, f"{config.environment} is loaded")
        except BridgeError as error:
            await started.close()
            raise ConfigError(
                f"{KEY}.environment = {config.environment!r} cannot be loaded by {python}: {error}. It needs verifiers "
                "0.1.11 to 0.3 and the environment's package there; set rollout.verifiers.python to a Python that has "
                "both."
            ) from error
        except BaseException:
            await started.close()
            raise
        log.info("verifiers %s plays %s", loaded.get("version"), config.environment)
        return started

    async def begin(self, episode: str, row: Mapping[str, Json]) -> None:
        """Have an episode begun; its first reply will be a prompt."""
        self._replies[episode] = asyncio.Queue()
        await self.send("begin", episode=episode, row=dict(row))

    async def next(self, episode: str) -> Reply:
        """The next prompt, or the end. Raises BridgeError: the episode failed, or there is none in turn_timeout_s."""
        return await self.reply(episode, self._config.turn_timeout_s, "it answers a turn")

    async def cancel(self, episode: str) -> None:
        """Have an episode ended; nothing is said of it any more."""
        if self._replies.pop(episode, None) is not None and self.ended is None:
            with suppress(BridgeError):  # the process is gone, and the episode with it
                await self.send("cancel", episode=episode)

    async def send(self, op: str, **fields: Json) -> None:
        """One request."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps({"op": op, **fields}) + "\n").encode())
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:  # a closed transport raises the latter
            raise BridgeError(self.ended or "the process of verifiers is gone") from error

    async def reply(self, episode: str | None, deadline_s: float, what: str) -> Reply:
        """The next reply to an episode, or to nobody in particular."""
        if self.ended is not None:
            raise BridgeError(self.ended)
        try:
            with waits.timed(WAIT_NAME, lambda: f"until {what}"):
                async with asyncio.timeout(deadline_s):
                    reply = await self._replies[episode].get()
        except TimeoutError:
            if time.monotonic() - self._heard_s >= deadline_s:  # it answers nobody: whoever comes next needs another
                self.ended = f"the process of verifiers said nothing for {deadline_s:g} s"
            raise BridgeError(f"{deadline_s:g} s passed before {what}") from None
        if reply["op"] in ("failed", "fatal", "gone"):
            raise BridgeError(str(reply["error"]))
        return reply

    async def close(self) -> None:
        """End the process; who still waits for it is told."""
        self.ended = self.ended or "the process of verifiers was closed"
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()
            self._reading.cancel()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                reply, self._heard_s = json.loads(line), time.monotonic()
                queue = self._replies.get(reply.get("episode"))
                if queue is not None:  # else its episode was cancelled meanwhile
                    queue.put_nowait(reply)
            self.ended = self.ended or f"the process of verifiers ended with code {await self._process.wait()}"
        except (ValueError, KeyError) as error:
            self.ended = f"the process of verifiers said what is no reply: {error}"
        for queue in self._replies.values():
            queue.put_nowait({"op": "gone", "error": self.ended})
