"""Replays traces of the weights model: real publishers, a real log and transport, engines with the real loader."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from tests.models.explorer import Step
from tests.models.weights.state import Setting
from tests.support.fused_model import checkpoint, save_checkpoint, stepped
from tests.support.model_engine import EngineAndHost
from tests.support.model_publish import KILLED, PASS, GatedLog, Killed, Publishing, dump, restore
from tests.support.redis_server import RedisServer
from weightsync import chain, sweeper
from weightsync.config import WeightsyncConfig
from weightsync.errors import BaseMismatch, Fenced
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import shards_of
from weightsync.transport import Transport, open_transport
from weightsync.transport.base import run_prefix, upload_version
from weightsync.versions import label, pack

SKIPPED = "nothing to do it with"
MAX_ROUNDS = 12

Weights = dict[str, Tensor]


@dataclass
class TrainerProcess:
    """One start of the trainer."""

    branch: int
    number: int
    weights: Weights
    log: GatedLog
    publisher: WeightPublisher = field(init=False)
    publishing: Publishing | None = None

    @property
    def version(self) -> int:
        return pack(self.branch, self.number)


class WeightsReplay:
    """One run in Redis. `play` a trace step by step, then `finish`: nothing but progress."""

    def __init__(self, setting: Setting, server: RedisServer, root: Path) -> None:
        self.setting, self.root, self.server = setting, root, server
        self.run = root.name
        self.config = WeightsyncConfig(bucket_words=1200, anchor_interval=100, keep_deltas=0)
        self.log, self.transport = self._client()
        self.made: dict[int, Weights] = {0: checkpoint()}
        self.model_dir = save_checkpoint(self.made[0], root / "model")
        self.saved = (0, self.made[0])
        self.trainers: dict[str, TrainerProcess | None] = {"trainer": None, "old trainer": None}
        self.late: Any = None
        self.has_lost = False
        self.before_flip: dict[str, bytes] = {}
        self.before_claim: dict[str, bytes] = {}
        self.words: Mapping[str, Callable[[Step], str]] = {
            **{"claim": self._claim, "put_part": self._upload, "flip": self._flip, "head": self._head},
            **{"advance snapshot": self._snapshot, "train": self._train, "checkpoint": self._checkpoint},
            **{"commit_anchor": self._anchor, "prune": self._prune, "crash": self._crash, "stall": self._stall},
            **{"stage": lambda step: self._server(step).stage(), "activate": self._activate, "register": self._restart},
            **{"put_ack": lambda step: self._server(step).acknowledge(), "ask engine": self._ask},
            **{"lose tail": self._lose_flip, "lose claim": self._lose_claim, "delete": self._lose_parts},
        }
        self._claim(Step("trainer", "claim"))
        assert self._publish("trainer") == "is head"
        self.servers = [self._engine(f"server-{place}") for place in range(setting.servers)]
        for one in self.servers:
            self._follow(one)

    def play(self, step: Step) -> str:
        """Do what the label says, as far as the real thing lets it; the answer in a word. Then look at everything."""
        answer = self.words[step.word](step)
        self.check()
        return answer

    def check(self) -> None:
        """A server in rotation holds what its acknowledgement says, and a joiner has a path to head."""
        acks = self.log.acks()
        for server in self.servers:
            ack = acks.get(server.name)
            if ack is not None and ack.state == "serving":
                assert server.holds(self.made[ack.version]), f"{server.name} acknowledged {label(ack.version)}"
        if not self.has_lost:
            assert chain.path(self.log.records(), None) is not None, "a joiner is stranded"

    def finish(self) -> None:
        """From here on nothing fails: another version is trained, and every server and a joiner serve it."""
        trainer = self.trainers["trainer"]
        goal = max(self.setting.versions, 1 + (trainer.number if trainer else 0))
        self.servers.append(self._engine("joiner"))
        for _ in range(MAX_ROUNDS):
            trainer = self.trainers["trainer"]
            if trainer is None:
                self._claim(Step("trainer", "claim"))
                continue
            if trainer.publishing is None and self._newest() != trainer.version:
                self._upload(Step("trainer", "put_part"))
            if trainer.publishing is not None:
                self._flip(Step("trainer", "flip"))
            elif trainer.number < goal:
                self._train(Step("trainer", "train", (trainer.number + 1,)))
            elif all(self._follow(server) for server in self.servers):
                break
            else:
                trainer.publisher.answer_needs()
            self.check()
        else:
            raise AssertionError(f"nothing moves any more: head is {label(self._newest())}")
        assert trainer is not None
        assert self._newest() == trainer.version
        assert all(server.holds(trainer.weights) for server in self.servers)

    def close(self) -> None:
        for trainer in self.trainers.values():
            self._kill(trainer)
        self.log.close()

    def _newest(self) -> int:
        head = self.log.head()
        assert head is not None, "the log begins with the model directory"
        return head.version

    def _client(self) -> tuple[VersionLog, Transport]:
        url = self.server.url
        return open_log(url, self.run), open_transport(self.config, url, self.run)

    def _engine(self, name: str) -> EngineAndHost:
        return EngineAndHost(name, self.log, self.transport, self.config, self.root, self.model_dir)

    def _follow(self, server: EngineAndHost) -> bool:
        """Whether the server serves head."""
        server.ask_engine()
        if server.stage() != "no path":
            server.activate()
            server.acknowledge()
        return server.host == self._newest()

    # Trainers

    def _claim(self, step: Step) -> str:
        number, weights = self.saved
        log, transport = self._client()
        self.before_claim = dump(self.server, self.run)
        trainer = TrainerProcess(log.owner() + 1, number, weights, GatedLog(log))
        shards = lambda: shards_of(trainer.weights.items(), "bfloat16")  # noqa: E731 # of what it holds then
        manifest = Manifest.from_model_dir(self.model_dir, "bfloat16")
        gated: Any = trainer.log
        trainer.publisher = WeightPublisher(manifest, shards, gated, transport, self.config)
        trainer.publisher.publish_origin(self.model_dir)
        trainer.publisher.claim(trainer.branch)
        self.made[trainer.version] = weights
        self.trainers[step.who] = trainer
        return f"branch {trainer.branch} at {number}"

    def _publish(self, who: str) -> str:
        self._upload(Step(who, "put_part"))
        return self._flip(Step(who, "flip"))

    def _upload(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        if trainer is None or trainer.publishing is not None:
            return SKIPPED
        publishing = Publishing(trainer.publisher, trainer.log, trainer.version)
        found = publishing.uploaded()
        if found in ("delta", "anchor"):
            trainer.publishing = publishing
        return f"{found} of {label(trainer.version)}"

    def _flip(self, step: Step) -> str:
        if step.who == "network":
            return self._late_flip()
        trainer = self.trainers[step.who]
        if trainer is None or trainer.publishing is None:
            return SKIPPED
        self.before_flip = dump(self.server, self.run)
        publishing, trainer.publishing = trainer.publishing, None
        answer = publishing.flip(step.how if step.how in ("reply lost", "delayed") else PASS)
        self.late = publishing.late or self.late
        if answer == "fenced":
            self.trainers[step.who] = None
        return answer

    def _late_flip(self) -> str:
        """The network delivers it after all."""
        try:
            self.log.flip(*self.late)
        except (BaseMismatch, Fenced) as error:
            return type(error).__name__
        return f"head is {label(self._newest())}"

    def _head(self, step: Step) -> str:
        return f"head is {label(self._newest())}"

    def _snapshot(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        snapshot = None if trainer is None else trainer.publisher._held.snapshot
        return f"snapshot of {label(snapshot.version if snapshot else None)}"

    def _train(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        if trainer is None or trainer.publishing is not None:
            return SKIPPED
        trainer.number = step.about[0]
        trainer.weights = stepped(trainer.weights, seed=trainer.version % 1009)
        assert trainer.version not in self.made, "a number names two sets of bits"
        self.made[trainer.version] = trainer.weights
        return f"made {label(trainer.version)}"

    def _checkpoint(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        assert trainer is not None
        self.saved = (trainer.number, trainer.weights)
        return "saved"

    def _anchor(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        assert trainer is not None
        return "written" if trainer.publisher.answer_needs() else "nobody needs one"

    def _prune(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        assert trainer is not None
        try:
            return f"{trainer.publisher.prune()} parts deleted"
        except Fenced:
            return "fenced"

    def _crash(self, step: Step) -> str:
        trainer = self.trainers[step.who]
        answer = "died"
        if trainer is not None and step.how:
            answer = self._dies_before_the_commit(trainer)
        self._kill(trainer)
        self.trainers[step.who] = None
        return answer

    def _dies_before_the_commit(self, trainer: TrainerProcess) -> str:
        """An anchor is all there, and its trainer dies before it commits it. Then somebody sweeps."""
        self.log.need("somebody", "wants an anchor")
        trainer.log.dies_at_commit = True
        with suppress(Killed):
            trainer.publisher.answer_needs()
        assert sweeper.sweep(self.log, self.transport, trainer.branch, 0) > 0, "its parts are nobody's"
        return f"died before the commit; {len(self.log.records())} records stay"

    def _kill(self, trainer: TrainerProcess | None) -> None:
        if trainer is not None and trainer.publishing is not None:
            assert trainer.publishing.flip(KILLED) == KILLED
            trainer.publishing = None

    def _stall(self, step: Step) -> str:
        self.trainers = {"trainer": None, "old trainer": self.trainers["trainer"]}
        return "stalled"

    # Servers

    def _server(self, step: Step) -> EngineAndHost:
        return self.servers[int(step.who.split()[1])]

    def _activate(self, step: Step) -> str:
        return self._server(step).activate(host_dies=step.how == "its host dies")

    def _ask(self, step: Step) -> str:
        return f"it holds {label(self._server(step).ask_engine()[0])}"

    def _restart(self, step: Step) -> str:
        self._server(step).start()
        return "registered anew"

    # Redis and the transport

    def _lose_flip(self, step: Step) -> str:
        self.has_lost = True
        restore(self.server, self.run, self.before_flip)
        return f"head is {label(self._newest())}"

    def _lose_claim(self, step: Step) -> str:
        restore(self.server, self.run, self.before_claim)
        return f"branch {self.log.owner()} owns the log"

    def _lose_parts(self, step: Step) -> str:
        self.has_lost = True
        uploads = self.transport.uploads(run_prefix(self.run))
        prefixes = [prefix for prefix in uploads if upload_version(prefix) == pack(*step.about)]
        return f"{sum(self.transport.delete(prefix) for prefix in prefixes)} parts deleted"
