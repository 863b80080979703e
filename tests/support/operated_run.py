"""A run on a private Redis on which an operator's commands are tried, in this process: what they print, exit codes."""

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from asyncrl import cli
from buffer import BufferConfig, Claim, ReplayBuffer, StalenessConfig, pack
from tests.support.commands import CONFIG
from tests.support.groups import group_for
from tests.support.redis_server import RedisServer

BUFFER = BufferConfig(max_attempts=1, max_group_bytes=1 << 20, max_bytes=256 << 20, retry_s=5)


class OperatedRun:
    """One run, with this process as its worker and trainer; `do` is the operator."""

    def __init__(self, server: RedisServer, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.name, self.server, self.directory = f"run-{secrets.token_hex(4)}", server, directory
        self._capsys = capsys
        self.buffer = ReplayBuffer.connect(server.url, self.name, BUFFER, StalenessConfig(policy="drop"))
        self.branch = 0
        self.out = self.err = ""

    def recover(self, *, limit: int = 2, per_version: int = 4) -> "OperatedRun":
        """A trainer takes over at version number 0."""
        self.branch = self.buffer.recover(
            secrets.token_hex(8), None, number=0, limit=limit, groups_per_version=per_version
        )
        return self

    @property
    def keys(self) -> list[str]:
        """The overrides that make a command be about this run."""
        return [f"run.name={self.name}", f"buffer.url={self.server.url}", f"run.dir={self.directory}"]

    def words(self, action: str, *rest: object, subject: object = None) -> list[str]:
        """The command line of an action: its words, the config, a subject (file or ordinal), the keys, the rest."""
        about = [] if subject is None else [str(subject)]
        return [*action.split(), str(CONFIG), *about, *self.keys, *map(str, rest)]

    def do(self, action: str, *rest: object, subject: object = None) -> int:
        """Run a command; its exit code. What it printed is in `out` and `err`."""
        self._capsys.readouterr()
        code = cli.main(self.words(action, *rest, subject=subject))
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, action: str, *rest: object, subject: object = None, code: int = 0) -> Any:
        """What a command prints with --json, which must be all that it prints."""
        assert self.do(action, *rest, "--json", subject=subject) == code, self.out + self.err
        return json.loads(self.out)

    def claim(self, worker: str = "worker-1") -> Claim:
        answer = self.buffer.reserve(worker)
        assert isinstance(answer, Claim), answer
        return answer

    def make(self, count: int) -> list[Claim]:
        """Groups that are ready."""
        claims = [self.claim() for _ in range(count)]
        for claim in claims:
            self.buffer.put(claim, group_for(claim, pack(self.branch, 0)))
        return claims

    def kill(self, count: int, reason: str = "tool_failed") -> list[int]:
        """Groups that died without a payload."""
        claims = [self.claim() for _ in range(count)]
        for claim in claims:
            self.buffer.fail(claim, reason, "the tool answered 503\nthree times")
        return [claim.ordinal for claim in claims]

    def poison(self, count: int) -> list[int]:
        """Groups that died with their payload: each trainer that leased them died."""
        ordinals = [claim.ordinal for claim in self.make(count)]
        for _ in range(3):
            self.buffer.lease(self.branch, 0, 1, count)
            self.recover(per_version=count)
        return ordinals
