"""A server's side of a slow, dead or long way: bytes in flight are bounded, waits end, and head and server stay."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.machine import Trainer, config_of
from tests.support.plain_engine import apply_ticket
from tests.support.weights import assert_same
from weightsync import reader as reading
from weightsync.errors import DeadlineExceeded, TransportLost
from weightsync.log.directory import DirectoryLog
from weightsync.reader import Reader
from weightsync.receiver import Receiver
from weightsync.ticket import TICKET, read_ticket
from weightsync.transport.base import Deadline
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import pack


class CountingTransport(DirectoryTransport):
    """Counts the bytes of parts that were asked for and not yet used up; says so for whoever uses them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "parts", "run")
        self._lock = threading.Lock()
        self.in_flight = self.most = self.total = 0
        self.fails: list[Exception] = []
        self.silent: threading.Event | None = None

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        if self.silent is not None:
            self.silent.wait(30.0)
        with self._lock:
            if self.fails:
                raise self.fails.pop()
            self.in_flight += len(target)
            self.total += len(target)
            self.most = max(self.most, self.in_flight)
        return super().get_part_into(key, target, deadline_s=deadline_s)

    def used(self, num_bytes: int) -> None:
        with self._lock:
            self.in_flight -= num_bytes


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[CountingTransport]:
    made = CountingTransport(tmp_path)
    yield made
    if made.silent is not None:
        made.silent.set()


def receiver_of(trainer: Trainer, transport: CountingTransport, deadline_s: float = 60.0) -> Receiver:
    return Receiver(
        *(DirectoryLog(trainer.root / "log", "run"), transport, config_of(trainer.root, deadline_s)),
        **{"server": "s", "incarnation": "1", "url": "http://s"},
        **{"stage_dir": trainer.root / "stage", "model_dir": trainer.model_dir},
    )


def test_a_long_chain_holds_no_more_bytes_than_a_short_one(
    trainer: Trainer, transport: CountingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty deltas of one bucket are more than the budget; they are folded one by one as they come."""
    for number in range(1, 31):
        trainer.publish(number)
    log = DirectoryLog(trainer.root / "log", "run")
    records = [record for record in log.records() if record.delta is not None]
    uploads = [record.delta for record in records if record.delta is not None]
    budget = 2500
    monkeypatch.setattr(reading, "AHEAD_BYTES", budget)
    reader = Reader(log, transport, None)
    manifest = reader.manifest(records[0].layout)
    plan = reader.plan(uploads[0].plan, manifest)
    sizes = {(upload.version, part.bucket): part.num_bytes for upload in uploads for part in upload.parts}
    assert sum(size for (_, bucket), size in sizes.items() if bucket == 0) > 2 * budget
    num_frames, used = 0, 0
    for bucket, frames in reader.stream(uploads, plan.buckets, manifest, Deadline(60.0, "reading")):
        for frame in frames:
            transport.used(used)
            used = sizes[frame.header.target, bucket.id]
            num_frames += 1
        transport.used(used)
        used = 0
    assert num_frames == len(sizes)
    assert transport.total == sum(sizes.values())
    assert transport.in_flight == 0
    assert max(sizes.values()) < transport.most <= budget


def test_a_server_far_behind_gets_there_within_the_budget(
    trainer: Trainer, transport: CountingTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {name: w.copy() for name, w in trainer.weights.items()}
    for number in range(1, 4):
        trainer.publish(number)
    monkeypatch.setattr(reading, "AHEAD_BYTES", 1)  # then parts come one by one
    ticket = receiver_of(trainer, transport).stage(0)
    assert ticket is not None
    assert (ticket.kind, ticket.target) == ("delta", pack(1, 3))
    apply_ticket(words, trainer.root / "stage", ticket, trainer.manifest)
    assert_same(words, trainer.weights)


def test_a_transport_that_says_nothing_ends_staging_at_its_deadline_and_nothing_else_changes(
    trainer: Trainer, transport: CountingTransport
) -> None:
    trainer.publish(1)
    receiver = receiver_of(trainer, transport, deadline_s=0.3)
    first = receiver.stage(0)
    assert first is not None
    receiver.acknowledge(first.target, first.digest)
    trainer.publish(2)
    transport.silent = threading.Event()
    with pytest.raises(
        DeadlineExceeded, match=r"staging for s: not done in 0\.3 s\. bucket 0 of 1\.2 is still on its way: the trans"
    ):
        receiver.stage(pack(1, 1))
    log = DirectoryLog(trainer.root / "log", "run")
    assert receiver.head() == pack(1, 2)
    assert (log.acks()["s"].version, log.servers()["s"].state) == (pack(1, 1), "serving")
    assert log.needs() == []
    assert read_ticket(trainer.root / "stage") == first
    assert [path.name for path in (trainer.root / "stage").iterdir() if path.name.startswith(".")] == []
    transport.silent.set()
    transport.silent = None
    again = receiver.stage(pack(1, 1))
    assert again is not None
    assert again.target == pack(1, 2)


def test_a_transport_that_is_lost_is_tried_again_and_is_no_reason_for_an_anchor(
    trainer: Trainer, transport: CountingTransport
) -> None:
    trainer.publish(1)
    receiver = receiver_of(trainer, transport)
    transport.fails = [TransportLost("no answer")]
    with pytest.raises(TransportLost):
        receiver.stage(0)
    assert not (trainer.root / "stage" / TICKET).exists()
    assert DirectoryLog(trainer.root / "log", "run").needs() == []
    ticket = receiver.stage(0)
    assert ticket is not None
    assert (ticket.kind, ticket.target) == ("delta", pack(1, 1))
