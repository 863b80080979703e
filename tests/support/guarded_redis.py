"""A Redis whose users are those of the generated ACL file, and what each role holds on it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from buffer import BufferConfig, Claim, ReplayBuffer, RunRecord
from buffer.acl import ADMIN, acl_file
from tests.support.redis_server import RedisServer, running_redis
from weightsync.log import VersionLog, open_log
from weightsync.log.records import VersionRecord

RUN = "guarded-1.a"
CONFIG = BufferConfig(claim_s=60, max_attempts=1, max_group_bytes=100_000, retry_s=5)
RECORD = RunRecord(schema=1, dataset="d41d8", seed=7, group_size=2, order="oldest", tokenizer="t0")
ORIGIN = VersionRecord(0, None, "origin", "layout", 1 << 63, model_dir="/models/start", num_words=1000)


class GuardedRedis:
    """A server, and the password of each user."""

    def __init__(self, server: RedisServer, passwords: dict[str, str]) -> None:
        self.server, self.passwords = server, passwords

    def url(self, user: str) -> str:
        return f"unix://{user}:{self.passwords[user]}@{self.server.socket}"

    def client(self, user: str) -> "redis.Redis":
        return redis.Redis(
            unix_socket_path=str(self.server.socket), username=user, password=self.passwords[user], protocol=2
        )

    def buffer(self, user: str, run: str = RUN) -> ReplayBuffer:
        return ReplayBuffer.connect(self.url(user), run, CONFIG)

    def log(self, user: str, run: str = RUN) -> VersionLog:
        return open_log(self.url(user), run)

    def begun(self) -> tuple[ReplayBuffer, ReplayBuffer, int]:
        """Trainer and worker of a run, and its branch."""
        trainer, worker = self.buffer("trainer"), self.buffer("rollout")
        trainer.register(RECORD)
        worker.register(RECORD)
        return trainer, worker, trainer.recover("n", None, number=0, limit=1, groups_per_version=2)

    def clean(self) -> None:
        """Leave nothing of a test."""
        with self.client(ADMIN) as admin:
            for key in admin.scan_iter("*"):
                admin.unlink(key)


@contextmanager
def guarded_redis(run: str = RUN, *, prefix: str = "", hosts_apart: bool = False) -> Iterator[GuardedRedis]:
    """A started server with the users of the run."""
    text, passwords = acl_file(run, prefix=prefix, hosts_apart=hosts_apart)
    with tempfile.TemporaryDirectory(prefix="asyncrl-acl-") as directory:
        path = Path(directory) / "users.acl"
        path.write_text(text)
        # DEBUG is off by default: the test of what is denied must be able to tell who denies it.
        with running_redis(options=("--aclfile", str(path), "--enable-debug-command", "yes")) as server:
            yield GuardedRedis(server, passwords)


def claimed(worker: ReplayBuffer) -> Claim:
    """What the worker is granted."""
    claim = worker.reserve("w")
    assert isinstance(claim, Claim), claim
    return claim
