"""Servers that were added to a run that goes on: each gets a host on its machine, and loses it when it is removed."""

import re
import socket
from collections.abc import Mapping

from asyncrl import waits
from asyncrl.run.rollout_side import RolloutSide
from weightsync import VersionLog

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a server may be called: files and folders are named after it."""


class Adoptions:
    """Brings one machine's hosts of added servers in line with what the log asks for.

    Args:
        machine: host name; additions for others are theirs.
    """

    def __init__(self, log: VersionLog, side: RolloutSide, machine: str | None = None) -> None:
        self._log, self._side = log, side
        self._machine = machine or socket.gethostname()
        self._urls: dict[str, str] = {}

    async def tend(self) -> list[str]:
        """Start and end hosts; what happened, for people."""
        wanted = await waits.in_thread(self._wanted)
        happened = []
        for name in [name for name, url in self._urls.items() if wanted.get(name) != url]:
            await self._side.dismiss(name)
            happened.append(f"{name} at {self._urls.pop(name)} was removed; its host has ended")
        for name, url in wanted.items():
            if name not in self._urls:
                self._side.adopt(name, url)
                self._urls[name] = url
                happened.append(f"{name} at {url} was added; its host brings it to head")
        return happened

    def _wanted(self) -> Mapping[str, str]:
        return {
            name: one.url
            for name, one in self._log.adoptions().items()
            if one.machine == self._machine and NAME.fullmatch(name)
        }
