"""A server whose engine is a dictionary of words: what the loader does, without a model; its host is the real one."""

from pathlib import Path

import numpy as np

from tests.support.weights import Model, assert_same
from weightsync import chain
from weightsync.config import WeightsyncConfig
from weightsync.log import VersionLog
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.planes import apply_planes
from weightsync.receiver import Receiver
from weightsync.ticket import Ticket, read_parts, read_plan
from weightsync.transport import Transport


class PlainEngine:
    """Starts from the model directory, at version 0.0 and in rotation; stays where it is until it is told to follow."""

    def __init__(
        self,
        log: VersionLog,
        transport: Transport,
        config: WeightsyncConfig,
        stage_dir: Path,
        model_dir: Path,
        name: str = "s",
    ) -> None:
        self._log, self._stage_dir = log, stage_dir
        self._manifest = Manifest.from_model_dir(model_dir)
        directory = ModelDir(model_dir)
        self.words: Model = {spec.name: directory.words(spec.name).copy() for spec in self._manifest.tensors}
        self.have = 0
        self.receiver = Receiver(
            *(log, transport, config),
            **{"server": name, "incarnation": "1", "url": f"http://{name}"},
            **{"stage_dir": stage_dir, "model_dir": model_dir},
        )
        self.receiver.acknowledge(0, self.receiver.origin_digest())

    def follow(self) -> int:
        """Come to head and say so; bytes that its paths took."""
        num_bytes = 0
        while (ticket := self.receiver.stage(self.have)) is not None:
            way = chain.path(self._log.records(), self.have)
            assert way is not None, "the log changed meanwhile"
            num_bytes += way.num_bytes
            self._apply(ticket)
            self.have = ticket.target
            self.receiver.acknowledge(ticket.target, ticket.digest)
        return num_bytes

    def assert_holds(self, model: Model) -> None:
        """Bit for bit."""
        assert_same(self.words, model)

    def _apply(self, ticket: Ticket) -> None:
        assert ticket.kind == "anchor" or ticket.base == self.have, "a delta on another base than the engine holds"
        apply_ticket(self.words, self._stage_dir, ticket, self._manifest)


def apply_ticket(words: Model, stage_dir: Path, ticket: Ticket, manifest: Manifest) -> None:
    """What the loader does, on plain words, in place; the base is not looked at."""
    buckets = read_plan(stage_dir, ticket.plan, manifest.tensors)
    for bucket, planes, dense in read_parts(stage_dir, ticket, buckets):
        piece = np.concatenate([words[s.tensor][s.start : s.end] for s in bucket.segments])
        if planes is not None:
            apply_planes(piece, planes, None)
        elif dense is not None:
            piece = dense
        at = 0
        for segment in bucket.segments:
            words[segment.tensor][segment.start : segment.end] = piece[at : at + segment.words]
            at += segment.words
