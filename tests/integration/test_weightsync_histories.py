"""Any history of publishes, faults, crashes, prunes and losses: a server only ever holds what a trainer made."""

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.plain_engine import apply_ticket
from tests.support.weights import Model, changed_model, manifest_of, random_model, save_model
from weightsync.config import WeightsyncConfig
from weightsync.errors import BaseMismatch, ChainBroken, Fenced, LogLost, PublishFailed, TransportFull
from weightsync.log.directory import DirectoryLog
from weightsync.log.records import VersionRecord
from weightsync.model_dir import ModelDir
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import LocalShard
from weightsync.ticket import Ticket
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import pack, unpack

SHAPES = {"a": ("bfloat16", (50, 8)), "b": ("bfloat16", (8,)), "c": ("int32", (9,))}
FAULTS = ("none", "none", "none", "put", "flip is lost", "answer is lost", "flip comes late")


class Log(DirectoryLog):
    fault = "none"
    late: tuple[int | None, VersionRecord] | None = None

    def flip(self, base: int | None, record: VersionRecord) -> None:
        fault, self.fault = self.fault, "none" if self.fault != "flip comes late" else self.fault
        if fault == "flip comes late":
            self.late = (base, record)
            raise LogLost("no answer")
        if fault != "flip is lost":
            super().flip(base, record)
        if fault in ("flip is lost", "answer is lost"):
            raise LogLost("no answer")


class Transport(DirectoryTransport):
    fails = False

    def put_part(self, *arguments: Any, **options: Any) -> None:
        if self.fails:
            raise TransportFull("no room")
        super().put_part(*arguments, **options)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="asyncrl-histories-"))
        self.manifest = manifest_of(SHAPES)
        self.config = WeightsyncConfig(
            directory=str(self.root / "parts"), bucket_words=200, anchor_interval=3, keep_deltas=1
        )
        self.log, self.transport = Log(self.root / "log", "run"), Transport(self.root / "parts", "run")
        self.made: dict[int, Model] = {0: random_model(self.manifest)}
        save_model(self.root / "model", self.manifest, self.made[0])
        self.branch, self.number, self.seed = 0, 0, 0
        self.weights = self.checkpoint = self.made[0]
        self.checkpoint_number = 0
        self.start()
        self.servers: dict[str, tuple[int | None, Model]] = {}
        self.receivers: dict[str, Receiver] = {}

    def start(self) -> None:
        """A trainer begins on a new branch from its checkpoint, and publishes that first."""
        self.branch += 1
        self.number, self.weights = self.checkpoint_number, self.checkpoint
        self.trainer = WeightPublisher(self.manifest, self.shards, self.log, self.transport, self.config)
        self.trainer.publish_origin(self.root / "model")
        self.trainer.claim(self.branch)
        self.publish("none")

    def shards(self) -> list[LocalShard]:
        whole = {segment.tensor: segment for segment in self.manifest.whole()}
        return [
            LocalShard(name, torch.from_numpy(words.copy()), (whole[name],)) for name, words in self.weights.items()
        ]

    def publish(self, fault: str) -> None:
        version = pack(self.branch, self.number)
        self.made[version] = self.weights
        self.transport.fails = fault == "put"
        self.log.fault = "none" if fault == "put" else fault
        try:
            report = self.trainer.publish(version)
        except PublishFailed:
            assert fault in ("put", "flip comes late")
        else:
            assert fault != "flip comes late" or report.num_changed == 0 or report.repeated
            assert report.version == version
        self.transport.fails, self.log.fault = False, "none"

    @rule(fault=st.sampled_from(FAULTS), fraction=st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    def step(self, fault: str, fraction: float) -> None:
        self.seed, self.number = self.seed + 1, self.number + 1
        self.weights = changed_model(self.weights, self.seed, fraction)
        self.publish(fault)

    @precondition(lambda self: self.log.late is not None)
    @rule()
    def the_late_flip_arrives(self) -> None:
        assert self.log.late is not None
        (base, record), self.log.late = self.log.late, None
        with contextlib.suppress(BaseMismatch, Fenced):
            self.log.flip(base, record)

    @rule()
    def save(self) -> None:
        self.checkpoint, self.checkpoint_number = self.weights, self.number

    @rule()
    def the_trainer_dies_and_resumes(self) -> None:
        self.start()

    @rule()
    def prune(self) -> None:
        self.trainer.prune()

    @rule(data=st.data())
    def an_upload_is_lost(self, data: st.DataObject) -> None:
        if found := self.transport.uploads("w:run:"):
            self.transport.delete(data.draw(st.sampled_from(found)))

    @rule(name=st.sampled_from(["s1", "s2"]))
    def a_server_starts(self, name: str) -> None:
        self.seed += 1
        self.servers[name] = (0, {n: ModelDir(self.root / "model").words(n).copy() for n in SHAPES})
        self.receivers[name] = Receiver(
            *(DirectoryLog(self.root / "log", "run"), DirectoryTransport(self.root / "parts", "run"), self.config),
            **{"server": name, "incarnation": str(self.seed), "url": "http://s"},
            **{"stage_dir": self.root / f"{name}-{self.seed}", "model_dir": self.root / "model"},
        )

    @rule(name=st.sampled_from(["s1", "s2"]))
    def a_server_follows(self, name: str) -> None:
        if name not in self.servers:
            return
        receiver, (have, words) = self.receivers[name], self.servers[name]
        try:
            ticket = receiver.stage(have)
        except ChainBroken:
            assert any(need.server == name for need in self.log.needs())
            self.trainer.answer_needs()
            return
        if ticket is not None:
            self.servers[name] = (ticket.target, applied(self, receiver, ticket, have, words))
            receiver.acknowledge(ticket.target, ticket.digest)

    @invariant()
    def a_server_holds_what_the_trainer_made_under_that_version(self) -> None:
        for have, words in getattr(self, "servers", {}).values():
            expected = self.made[have]
            assert all(np.array_equal(words[name], expected[name]) for name in SHAPES)

    @invariant()
    def head_is_something_a_trainer_published(self) -> None:
        head = self.log.head()
        assert head is not None
        assert head.version in self.made
        assert unpack(head.version)[0] <= self.branch

    def teardown(self) -> None:
        """In the end a server that starts now reaches head, if the trainer is asked."""
        self.a_server_starts("s1")
        for _ in range(8):
            self.a_server_follows("s1")
        self.a_server_holds_what_the_trainer_made_under_that_version()
        head = self.log.head()
        assert head is not None
        assert self.servers["s1"][0] == head.version
        shutil.rmtree(self.root)


def applied(machine: Histories, receiver: Receiver, ticket: Ticket, have: int | None, words: Model) -> Model:
    """What the loader does, on plain words; the base is checked like there."""
    assert ticket.kind == "anchor" or ticket.base == have
    new = {name: w.copy() for name, w in words.items()}
    apply_ticket(new, receiver._stage_dir, ticket, machine.manifest)
    return new


Histories.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyHistory = pytest.mark.filterwarnings("ignore::ResourceWarning")(Histories.TestCase)
