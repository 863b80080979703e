"""Machines that are taken away and come: `asyncrl serve-rollout` as processes on one run, each with its own server.

The test is their trainer. It publishes versions and trains on nothing, so that answers are always under way. Starting
servers takes seconds, so there is one story: a server is replaced, its machine is announced to be taken away, another
one comes in its place, and what was parked is finished.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.load_config import load
from asyncrl.run.server_parts import server_name
from buffer import ReplayBuffer
from buffer.versions import label
from tests.support.commands import CONFIG, Command
from tests.support.left_behind import descendants_of, left_of, processes_of
from tests.support.redis_server import running_redis
from tests.support.rollout_cluster import RolloutCluster
from tests.support.worker_process import worker_config

FIRST, SECOND = server_name(0), server_name(0, place=1)
STOP_TIMEOUT_S = 60.0
PARKED_WITHIN_S = STOP_TIMEOUT_S * 3 / 8
LIMIT, PER_VERSION = 6, 1000  # more than two machines play in minutes


class Machines:
    """The run, and the commands of its machines."""

    def __init__(self, directory: Path, redis_url: str) -> None:
        self.cluster = RolloutCluster(directory, redis_url, ack_lease_s=3.0)
        self.trainer = self.cluster.trainer()
        self.directory = directory
        prompts = worker_config(directory, "run", self.cluster.model_dir).data.train_files
        self.keys = [
            *(f"run.dir={directory / 'run'}", "run.name=run", f"buffer.url={redis_url}", "metrics.sinks=[]"),
            *("starter=null", f"model.path={self.cluster.model_dir}", f"weightsync.stage_dir={directory / 'stage'}"),
            *(f"data.train_files=[{prompts[0]}]", "data.val_files=[]", "data.max_prompt_tokens=16"),
            *("rollout.n=2", "rollout.slots=4", "rollout.max_new_tokens=400", "inference.context_length=512"),
            *("inference.max_running_requests=2", f"cluster.stop_timeout_s={STOP_TIMEOUT_S}"),
            *(f"staleness.limit={LIMIT}", f"schedule.groups_per_step={PER_VERSION}", "weightsync.ack_lease_s=3"),
            *("buffer.claim_s=6", "buffer.renew_every_s=1", "buffer.max_group_bytes=65536"),
        ]
        config = load(CONFIG, self.keys).config
        self.buffer = ReplayBuffer.connect(redis_url, "run", config.buffer, config.staleness)
        self.buffer.recover("nonce", None, number=0, limit=LIMIT, groups_per_version=PER_VERSION)
        self._commands: list[Command] = []

    def start(self) -> tuple[Command, Path]:
        """A machine comes; its command, and the file that announces that it will be taken away."""
        number = len(self._commands)
        notice = self.directory / f"notice-{number}"
        keys = [*self.keys, f"inference.preemption.file={notice}", "inference.preemption.every_s=0.1"]
        command = Command(["serve-rollout", str(CONFIG), *keys], self.directory / f"serve-rollout-{number}.out")
        self._commands.append(command)
        return command, notice

    def close(self) -> None:
        """Whatever is still there goes."""
        for command in self._commands:
            command.close()
        self.buffer.close()

    def serves(self, name: str, version: int, since: str = "") -> Callable[[], bool]:
        """Whether a server serves a version, in another life than `since`."""

        def look() -> bool:
            ack = self.cluster.log.acks().get(name)
            return ack is not None and (ack.version, ack.state) == (version, "serving") and ack.incarnation != since

        return look

    def life(self, name: str) -> str:
        """The incarnation of a server."""
        return self.cluster.log.servers()[name].incarnation

    def claims(self, worker: str) -> set[int]:
        """Ordinals of the groups that a worker has in flight, and that have tokens."""
        return {claim.ordinal for claim in self.buffer.status().claims if claim.worker == worker and claim.num_sampled}

    def ready(self) -> set[int]:
        """Ordinals of the groups that are finished."""
        return {held.entry.ordinal for held in self.buffer.groups("ready")}


@contextmanager
def machines(directory: Path) -> Iterator[Machines]:
    with running_redis() as redis, closing(Machines(directory, redis.url)) as run:
        yield run


def worker_of(command: Command) -> str:
    """The name of a machine's worker."""
    (pid,) = (pid for pid, line in descendants_of(command.process.pid).items() if " rollout-worker " in line)
    return f"worker-0.{pid}"


def seconds_in(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found[1])


def test_a_machine_that_is_taken_away_parks_what_it_has_and_another_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B179: and nothing of the machines' processes is left at the end."""
    with machines(tmp_path) as run:
        first, notice = run.start()
        first.until("the first machine serves", run.serves(FIRST, 0))
        second, _ = run.start()
        second.until("the second machine serves", run.serves(SECOND, 0))

        # Its server is replaced amid answers, and serves head in its next life.
        head, life = run.trainer.step(), run.life(FIRST)
        first.until("head is served", run.serves(FIRST, head))
        worker = worker_of(first)
        first.until("answers are under way", lambda: bool(run.claims(worker)))
        asked = ["fleet", "replace", str(CONFIG), FIRST, *run.keys, "--within", "0"]
        capsys.readouterr()
        assert cli.main(asked) == 0
        answer = capsys.readouterr().out
        replaced_s = seconds_in(rf"{FIRST} was replaced and serves {label(head)} after ([0-9.]+) s", answer)
        assert run.life(FIRST) != life

        # Its machine is announced to be taken away: what it has is parked in time, and no token is lost.
        first.until("answers are under way", lambda: bool(run.claims(worker)))
        begun, life, start_s = run.claims(worker), run.life(FIRST), time.monotonic()
        notice.touch()
        assert first.wait(STOP_TIMEOUT_S) == 0, first.text()
        left_s = time.monotonic() - start_s
        parked_s = seconds_in(r"groups were finished or parked after ([0-9.]+) s", first.text())
        assert parked_s <= PARKED_WITHIN_S
        assert run.claims(worker) == set()
        assert [fate for fate, _ in run.buffer.audit().tokens.fates if fate.startswith("failed")] == []
        assert float(run.buffer.reports()[worker]["partials_parked"]) > 0

        # Another machine comes in its place, and its server serves the head that was published meanwhile.
        head, start_s = run.trainer.step(), time.monotonic()
        third, _ = run.start()
        third.until("the new machine serves head", run.serves(FIRST, head, since=life))
        came_s = time.monotonic() - start_s

        # What was parked is finished from its tokens, by whoever is there.
        third.until("what was begun is finished", lambda: begun <= run.ready())
        resumed = sum(float(facts.get("partials_resumed", 0)) for facts in run.buffer.reports().values())
        assert resumed > 0
        audit = run.buffer.audit()
        assert audit.tokens.problems() == []
        print(
            f"replaced {replaced_s:.1f} s; parked {parked_s:.1f} s, gone {left_s:.1f} s; another serves {came_s:.1f} s"
        )
        assert [third.terminate(), second.terminate()] == [0, 0]
        assert left_of(processes_of(run.directory)) == {}
