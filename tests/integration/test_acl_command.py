"""`asyncrl buffer acl`: what it writes protects a real server, and the operator's user can do what operators do."""

import json
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrl import cli
from buffer import BufferConfig, Claim, ReplayBuffer, ServerRefused, pack
from tests.support.commands import CONFIG
from tests.support.groups import group_for
from tests.support.redis_server import RedisServer, running_redis

REFUSED = 3
RUN = "guarded"


@contextmanager
def guarded(users: Path) -> Iterator[RedisServer]:
    """A server with this ACL file."""
    with running_redis(options=("--aclfile", str(users))) as server:
        yield server


def acl(directory: Path, *words: str, url: str = "null") -> int:
    keys = (f"run.name={RUN}", f"buffer.url={url}")
    return cli.main(["buffer", "acl", str(CONFIG), str(directory), *keys, *words])


def passwords(directory: Path) -> dict[str, str]:
    return dict(line.split(" ") for line in (directory / "users.passwords").read_text().splitlines())


def test_no_password_is_printed_unless_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert acl(tmp_path / "a", url="rediss://old:hunter2@redis.example:6380/1") == 0
    shown = capsys.readouterr().out
    secrets = passwords(tmp_path / "a")
    assert not any(secret in shown for secret in (*secrets.values(), "hunter2"))
    assert "rediss://trainer:PASSWORD@redis.example:6380/1" in shown
    assert str(tmp_path / "a" / "users.acl") in shown.replace("\n", "")
    assert not any(secret in (tmp_path / "a" / "users.acl").read_text() for secret in secrets.values())
    for name in ("users.acl", "users.passwords"):
        assert stat.S_IMODE((tmp_path / "a" / name).stat().st_mode) == 0o600
    assert acl(tmp_path / "c", url="redis+sentinel://a:26379/the-run?sentinel_password=hunter2&password=hunter2") == 0
    assert "hunter2" not in capsys.readouterr().out
    assert acl(tmp_path / "b", "--show", "--json", "--prefix", "x-") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["urls"]["operator"] == f"rediss://x-operator:{passwords(tmp_path / 'b')['x-operator']}@HOST:6379"


def test_passwords_that_are_in_use_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert acl(tmp_path) == 0
    before = (tmp_path / "users.passwords").read_text()
    assert acl(tmp_path) == REFUSED
    assert "would lock out" in capsys.readouterr().err
    assert (tmp_path / "users.passwords").read_text() == before


@pytest.fixture
def operate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., int]]:
    """Run a command as a role, on a guarded server with a run that a trainer and a worker have used."""
    assert acl(tmp_path) == 0
    secret = passwords(tmp_path)
    with guarded(tmp_path / "users.acl") as server:

        def url(role: str) -> str:
            return f"unix://{role}:{secret[role]}@{server.socket}"

        trainer = ReplayBuffer.connect(url("trainer"), RUN, BufferConfig(retry_s=5))
        branch = trainer.recover("nonce", None, number=0, limit=1, groups_per_version=4)
        worker = ReplayBuffer.connect(url("rollout"), RUN, BufferConfig(retry_s=5, max_attempts=1))
        claims = [worker.reserve("worker-1") for _ in range(3)]
        assert all(isinstance(claim, Claim) for claim in claims)
        worker.put(claims[0], group_for(claims[0], pack(branch, 0)))
        worker.put(claims[1], group_for(claims[1], pack(branch, 0)))
        worker.fail(claims[2], "tool_failed", "broken")
        with pytest.raises(ServerRefused):
            worker.commit(branch, trainer.ledger(branch, 0, ()))

        def command(role: str, action: str, *rest: object) -> int:
            keys = (f"run.name={RUN}", f"buffer.url={url(role)}", "buffer.max_attempts=1")
            subject = [str(one) for one in rest if not str(one).startswith("-")]
            options = [str(one) for one in rest if str(one).startswith("-")]
            return cli.main([*action.split(), str(CONFIG), *subject, *keys, *options])

        yield command
        for buffer in (trainer, worker):
            buffer.close()


def test_an_operator_can_do_all_that_operators_do_and_a_worker_imports(
    operate: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for action in ("buffer status", "audit", "buffer pause", "buffer drain", "buffer resume", "stop", "buffer resume"):
        assert operate("operator", action) == 0, (action, capsys.readouterr().err)
    assert operate("operator", "audit", "--payloads") == 0
    file = tmp_path / "groups.parquet"
    assert operate("operator", "buffer export", file) == 0
    assert operate("operator", "buffer dead-letters list") == 0
    assert operate("operator", "buffer dead-letters show", 2) == 0
    assert operate("operator", "buffer dead-letters purge", "--all") == 0
    assert operate("operator", "buffer dead-letters resubmit", "--all") == 0
    capsys.readouterr()
    assert operate("operator", "buffer import", file) == REFUSED
    assert "denies this user" in capsys.readouterr().err
    assert operate("rollout", "buffer import", file) == 0, capsys.readouterr().err
