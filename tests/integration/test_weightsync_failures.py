"""What dies, whenever: head, parts, snapshot and servers agree again afterwards."""

import pickle
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fused_model import checkpoint, save_checkpoint, stepped
from tests.support.plain_engine import apply_ticket
from tests.support.rank_threads import RankThread, RankThreads
from tests.support.weights import Model, assert_same
from weightsync.config import WeightsyncConfig
from weightsync.errors import ChainBroken, CorruptDelta, Fenced, LayoutMismatch, LogLost, PublishFailed, TransportFull
from weightsync.layout import Segment
from weightsync.log.directory import DirectoryLog
from weightsync.log.records import VersionRecord
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.publisher import WeightPublisher
from weightsync.receiver import Receiver
from weightsync.shard import LocalShard, shards_of
from weightsync.snapshot import Snapshot
from weightsync.ticket import Ticket
from weightsync.transport.directory import DirectoryTransport
from weightsync.versions import label, pack
from weightsync.warm import compile_kernels

KILLED = KeyboardInterrupt  # what no handler of ours catches: the process is gone


class FaultyLog(DirectoryLog):
    """A log whose flip does what the test says, once: before or after the real one."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def flip(self, base: int | None, record: VersionRecord) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()
        super().flip(base, record)
        after, self.after = self.after, None
        if after is not None:
            after()


class FaultyTransport(DirectoryTransport):
    """A transport that fails at the n-th put from now."""

    fails_at: int | None = None
    error: BaseException = TransportFull("no room")

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise self.error
        super().put_part(key, parts, deadline_s=deadline_s)


class World:
    """A trainer, its log and transport as folders, and readers that only look at words."""

    def __init__(self, root: Path, **settings: Any) -> None:
        compile_kernels()  # a server that nobody renews must not be taken for dead meanwhile
        self.root = root
        defaults = {"directory": str(root / "parts"), "bucket_words": 300, "anchor_interval": 100}
        self.config = WeightsyncConfig.model_validate({**defaults, **settings})
        self.weights = checkpoint()
        self.model_dir = save_checkpoint(self.weights, root / "model")
        self.manifest = Manifest.from_model_dir(self.model_dir, "bfloat16")
        self.log = FaultyLog(root / "log", "run")
        self.transport = FaultyTransport(root / "parts", "run")

    def trainer(self, branch: int = 1, *, rank: RankThread | None = None, cut: int = 0) -> WeightPublisher:
        publisher = WeightPublisher(
            self.manifest, lambda: self.shards(rank, cut), self.log, self.transport, self.config, rank
        )
        publisher.publish_origin(self.model_dir)
        publisher.claim(branch)
        return publisher

    def shards(self, rank: RankThread | None, cut: int) -> list[LocalShard]:
        """A rank's rows of every matrix; vectors are replicated."""
        whole = shards_of(self.weights.items(), "bfloat16")
        return whole if rank is None else [_rows(shard, rank.rank, rank.world, cut) for shard in whole]

    def receiver(self, name: str = "s") -> Receiver:
        stage_dir = self.root / f"stage-{name}"
        return Receiver(
            *(DirectoryLog(self.root / "log", "run"), DirectoryTransport(self.root / "parts", "run"), self.config),
            **{
                "server": name,
                "incarnation": "1",
                "url": "http://s",
                "stage_dir": stage_dir,
                "model_dir": self.model_dir,
            },
        )

    def step(self, seed: int, fraction: float = 0.05) -> dict[str, Tensor]:
        self.weights = stepped(self.weights, seed, fraction)
        return self.weights

    def assert_a_joiner_gets(
        self, weights: dict[str, Tensor], have: int | None = None, held: Model | None = None
    ) -> None:
        """A reader that begins with nothing (or `held` at `have`) ends with these weights."""
        receiver = self.receiver("joiner")
        words: Model = {} if held is None else {name: w.copy() for name, w in held.items()}
        for _ in range(6):
            ticket = receiver.stage(have)
            if ticket is None:
                break
            apply(self, self.root / "stage-joiner", ticket, words)
            have = ticket.target
        assert_same(words, {name: t.view(-1).view(torch.uint16).numpy() for name, t in weights.items()})


def _rows(shard: LocalShard, rank: int, world: int, cut: int) -> LocalShard:
    if shard.tensor.dim() == 1:
        return shard
    rows = shard.tensor.shape[0]
    # `cut` moves the borders, so that two arrangements of as many ranks differ.
    edges = [0, *(min(rows, (rows * (i + 1)) // world + cut) for i in range(world - 1)), rows]
    piece = shard.tensor[edges[rank] : edges[rank + 1]].contiguous()
    start = edges[rank] * shard.tensor.shape[1]
    segments = (Segment(shard.name, start, piece.numel()),) if piece.numel() else ()
    return LocalShard(shard.name, piece, segments)


def apply(world: World, stage_dir: Path, ticket: Ticket, words: Model) -> None:
    """What the loader does, on plain words."""
    for name in [spec.name for spec in world.manifest.tensors if spec.name not in words]:
        words[name] = ModelDir(world.model_dir).words(name).copy()
    apply_ticket(words, stage_dir, ticket, world.manifest)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_publish_that_cannot_put_its_parts_leaves_everything_as_it_was(world: World) -> None:
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    world.step(2)
    world.transport.fails_at = 2
    with pytest.raises(PublishFailed, match=r"version 1\.2 was not published: .*no room.*the next publish covers"):
        trainer.publish(pack(1, 2))
    world.transport.fails_at = None
    assert trainer.head() == pack(1, 1)
    assert len(world.transport.uploads("w:run:")) == 1
    world.step(3)
    report = trainer.publish(pack(1, 3))
    assert report.base == pack(1, 1)
    world.assert_a_joiner_gets(world.weights)


def test_the_first_version_sends_what_the_trainers_memory_holds_and_its_directory_does_not(world: World) -> None:
    """B071: a format round trip changed one bit before any step: the servers have the directory's word."""
    world.weights["model.norm.weight"].view(torch.int16)[3] += 1
    report = world.trainer().publish(pack(1, 0))
    assert (report.base, report.num_changed) == (0, 1)
    world.assert_a_joiner_gets(world.weights)


def test_a_deadline_that_passes_is_a_failed_publish(tmp_path: Path) -> None:
    world = World(tmp_path, publish_deadline_s=1e-9)
    trainer = world.trainer()
    world.step(1)
    with pytest.raises(PublishFailed, match="not done in"):
        trainer.publish(pack(1, 1))
    assert trainer.head() == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_flip_whose_answer_is_lost_is_looked_up_and_is_no_failure(world: World, when: str) -> None:
    trainer = world.trainer()
    world.step(1)

    def lost() -> None:
        raise LogLost("the answer is lost")

    setattr(world.log, when, lost)
    report = trainer.publish(pack(1, 1))
    assert (report.version, trainer.head()) == (pack(1, 1), pack(1, 1))
    world.step(2)
    assert trainer.publish(pack(1, 2)).base == pack(1, 1)
    world.assert_a_joiner_gets(world.weights)


def test_a_flip_that_arrives_after_its_publish_was_given_up_is_found_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = world.trainer()
    first = world.step(1)
    late: list[VersionRecord] = []

    def never(base: int | None, record: VersionRecord) -> None:
        late.append(record)
        raise LogLost("no answer")

    monkeypatch.setattr(world.log, "flip", never)
    with pytest.raises(PublishFailed, match="found out by the next publish"):
        trainer.publish(pack(1, 1))
    monkeypatch.undo()
    world.log.flip(0, late[0])  # the network delivers it after all
    assert trainer.head() == pack(1, 1)
    world.assert_a_joiner_gets(first)
    world.step(2)
    assert trainer.publish(pack(1, 2)).base == pack(1, 1)
    world.assert_a_joiner_gets(world.weights)


def test_a_late_flip_cannot_overtake_a_newer_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = world.trainer()
    world.step(1)
    late: list[VersionRecord] = []

    def never(base: int | None, record: VersionRecord) -> None:
        late.append(record)
        raise LogLost("no answer")

    monkeypatch.setattr(world.log, "flip", never)
    with pytest.raises(PublishFailed):
        trainer.publish(pack(1, 1))
    monkeypatch.undo()
    world.step(2)
    trainer.publish(pack(1, 2))
    with pytest.raises(Exception, match=r"head is 1\.2"):
        world.log.flip(0, late[0])
    world.assert_a_joiner_gets(world.weights)


@pytest.mark.parametrize("when", ["parts", "before", "after", "advance"])
def test_a_trainer_killed_anywhere_in_a_publish_resumes_and_servers_follow(
    world: World, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = world.trainer()
    saved = world.step(1)
    trainer.publish(pack(1, 1))
    world.step(2)

    def die() -> None:
        raise KILLED

    if when == "parts":
        world.transport.fails_at, world.transport.error = 3, KILLED()
    elif when == "advance":
        monkeypatch.setattr(Snapshot, "advance", lambda *_: die())
    else:
        setattr(world.log, when, die)
    with pytest.raises(KILLED):
        trainer.publish(pack(1, 2))
    monkeypatch.undo()
    world.transport.fails_at = None
    assert world.log.head() is not None
    head = trainer.head()
    assert head == (pack(1, 2) if when in ("after", "advance") else pack(1, 1))
    world.weights = saved
    resumed = world.trainer(branch=2)
    report = resumed.publish(pack(2, 1))
    assert (report.kind, report.base) == ("delta", head)
    world.assert_a_joiner_gets(saved)
    world.step(7)
    resumed.publish(pack(2, 2))
    world.assert_a_joiner_gets(world.weights)
    resumed.prune()
    named = {u.nonce for record in world.log.records() for u in record.uploads() if u.parts}
    assert {prefix.split(":")[4] for prefix in world.transport.uploads("w:run:")} == named


def test_a_paused_trainer_that_wakes_up_is_fenced_and_its_parts_are_swept(world: World) -> None:
    old = world.trainer()
    world.step(1)
    new = world.trainer(branch=2)
    with pytest.raises(Fenced):
        old.publish(pack(1, 1))
    with pytest.raises(Fenced):
        old.prune()
    world.step(2)
    new.publish(pack(2, 1))
    world.assert_a_joiner_gets(world.weights)


def test_a_trainer_that_is_overtaken_between_upload_and_flip_is_fenced(world: World) -> None:
    old = world.trainer()
    world.step(1)
    world.log.before = lambda: world.log.claim(2)
    with pytest.raises(Fenced):
        old.publish(pack(1, 1))
    assert old.head() == 0


def lose_tail(world: World, to: int) -> None:
    """What an append-only file synced every second loses when its machine dies: the last flip."""
    world.log._files.write("head", f"{to:020d}".encode())


def test_a_log_that_lost_its_last_flip_gets_the_version_again(world: World) -> None:
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    held = dict(world.weights)
    world.step(2)
    trainer.publish(pack(1, 2))
    lose_tail(world, pack(1, 1))
    report = trainer.publish(pack(1, 2))
    assert (report.repeated, report.version) == (False, pack(1, 2))
    world.assert_a_joiner_gets(world.weights)
    lose_tail(world, pack(1, 1))
    world.step(3)
    trainer.publish(pack(1, 3))
    # A server that holds the lost version starts whole; one that holds the version before goes on.
    world.assert_a_joiner_gets(world.weights, have=pack(1, 2))
    words = {name: t.view(-1).view(torch.uint16).numpy() for name, t in held.items()}
    world.assert_a_joiner_gets(world.weights, have=pack(1, 1), held=words)


def test_a_log_that_lost_everything_begins_again_with_a_whole_version(world: World) -> None:
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    shutil.rmtree(world.root / "log")
    FaultyLog(world.root / "log", "run")  # the folders again, empty
    world.step(2)
    trainer.claim(1)
    report = trainer.publish(pack(1, 2))
    assert report.kind == "anchor"
    world.assert_a_joiner_gets(world.weights)


def test_a_snapshot_that_memory_damaged_is_found_before_servers_are_given_it(world: World) -> None:
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    assert trainer._held.snapshot is not None
    trainer._held.snapshot.words[0][5] += 1
    world.log.need("s", "no path")
    with pytest.raises(Exception, match="it is dropped, and the next version goes whole"):
        trainer.answer_needs()
    world.step(2)
    trainer.publish(pack(1, 2))
    world.assert_a_joiner_gets(world.weights)


def test_a_trainer_without_a_readable_chain_publishes_whole(world: World) -> None:
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    world.transport.delete("w:run:")
    resumed = world.trainer(branch=2)
    world.step(2)
    report = resumed.publish(pack(2, 1))
    assert (report.kind, report.base, report.has_anchor) == ("anchor", None, True)
    world.assert_a_joiner_gets(world.weights)


def test_an_anchor_that_cannot_be_written_is_told_and_tried_again_with_the_next_version(tmp_path: Path) -> None:
    world = World(tmp_path, anchor_interval=2, bucket_words=1 << 20)
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    world.step(2)
    world.transport.fails_at = 1  # the delta is one part, the anchor comes second
    report = trainer.publish(pack(1, 2))
    assert (report.has_anchor, report.version) == (False, pack(1, 2))
    assert "no room" in str(report.anchor_error)
    world.transport.fails_at = None
    world.step(3)
    assert trainer.publish(pack(1, 3)).has_anchor
    world.assert_a_joiner_gets(world.weights)


def parts_of_head(world: World) -> list[Path]:
    return sorted(path for path in (world.root / "parts").rglob("[0-9]*:[0-9]*") if path.is_file())


def test_a_part_with_one_flipped_bit_is_refused_and_an_anchor_takes_its_place(world: World) -> None:
    trainer, receiver = world.trainer(), world.receiver()
    world.step(1)
    trainer.publish(pack(1, 1))
    path = parts_of_head(world)[0]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ChainBroken):
        receiver.stage(0)
    assert not list((world.root / "stage-s").glob("ticket*"))
    assert trainer.answer_needs()
    world.assert_a_joiner_gets(world.weights)


def test_parts_sealed_without_the_key_are_refused_where_one_is_set(tmp_path: Path) -> None:
    open_world = World(tmp_path)
    trainer = open_world.trainer()
    open_world.step(1)
    trainer.publish(pack(1, 1))
    open_world.config = WeightsyncConfig.model_validate(
        {**open_world.config.model_dump(), "key": "a secret that nobody else has"}
    )
    with pytest.raises(ChainBroken):
        open_world.receiver().stage(0)
    sealed = open_world.trainer(branch=2)
    open_world.step(2)
    assert sealed.publish(pack(2, 1)).kind == "anchor"
    open_world.assert_a_joiner_gets(open_world.weights)


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("where", ["record", "layout", "plan", "part"])
def test_a_pickle_in_the_place_of_our_bytes_runs_no_code(world: World, where: str) -> None:
    trainer = world.trainer()
    world.step(1)
    trainer.publish(pack(1, 1))
    marker = world.root / "executed"
    trap = pickle.dumps(Trap(marker))
    if where == "record":
        world.log._files.write(f"records/{pack(1, 1):020d}", trap)
    elif where == "part":
        for path in parts_of_head(world):
            path.write_bytes(trap)
    else:
        for path in (world.root / "log").rglob(f"*{where}%3A*"):
            path.write_bytes(trap)
    with pytest.raises((ChainBroken, LayoutMismatch, CorruptDelta)):
        world.receiver().stage(0)
    assert not marker.exists()


def on_ranks(world: World, group: RankThreads, branch: int, cut: int = 0) -> list[WeightPublisher]:
    found = group.run(lambda rank: world.trainer(branch, rank=rank, cut=cut))
    assert all(isinstance(publisher, WeightPublisher) for publisher in found), found
    return [publisher for publisher in found if isinstance(publisher, WeightPublisher)]


def test_ranks_publish_their_own_shards_and_servers_get_the_whole(world: World) -> None:
    group = RankThreads(3)
    trainers = on_ranks(world, group, 1)
    for number in (1, 2):
        world.step(number)
        reports = group.run(lambda rank, n=number: trainers[rank.rank].publish(pack(1, n)))  # type: ignore[misc]
        assert len({(r.digest, r.num_changed, r.num_bytes) for r in reports if not isinstance(r, BaseException)}) == 1
        world.assert_a_joiner_gets(world.weights)
    head = world.log.head()
    assert head is not None
    assert head.delta is not None
    assert {part.rank for part in head.delta.parts} == {0, 1, 2}


def test_if_one_rank_cannot_put_its_parts_all_ranks_fail_alike(world: World) -> None:
    """B069: no rank is left in a collective that another one gave up."""
    group = RankThreads(2)
    trainers = on_ranks(world, group, 1)
    world.step(1)
    world.transport.fails_at = 5
    outcomes = group.run(lambda rank: trainers[rank.rank].publish(pack(1, 1)))
    assert all(isinstance(outcome, PublishFailed) for outcome in outcomes), outcomes
    world.transport.fails_at = None
    assert world.log.head() is not None
    assert trainers[0].head() == 0
    assert world.transport.uploads("w:run:") == []
    group.run(lambda rank: trainers[rank.rank].publish(pack(1, 2)))
    world.assert_a_joiner_gets(world.weights)


@pytest.mark.parametrize(("before", "after", "cut"), [(3, 1, 0), (1, 2, 0), (2, 2, 1), (4, 3, 0)])
def test_a_trainer_may_resume_on_another_number_of_ranks(world: World, before: int, after: int, cut: int) -> None:
    group = RankThreads(before)
    trainers = on_ranks(world, group, 1)
    for number in (1, 2):
        world.step(number)
        group.run(lambda rank, n=number: trainers[rank.rank].publish(pack(1, n)))  # type: ignore[misc]
    held = {name: t.view(-1).view(torch.uint16).numpy().copy() for name, t in world.weights.items()}
    group = RankThreads(after)
    trainers = on_ranks(world, group, 2, cut)
    world.step(3)
    reports = group.run(lambda rank: trainers[rank.rank].publish(pack(2, 3)))
    assert [getattr(report, "kind", report) for report in reports] == ["delta"] * after
    world.assert_a_joiner_gets(world.weights, have=pack(1, 2), held=held)
    world.assert_a_joiner_gets(world.weights)


def test_a_publisher_that_claimed_nothing_or_another_branch_publishes_nothing(world: World) -> None:
    trainer = world.trainer()
    with pytest.raises(ValueError, match=f"publish of {label(pack(2, 1))}: this publisher has claimed branch 1"):
        trainer.publish(pack(2, 1))
    unclaimed = WeightPublisher(world.manifest, lambda: [], world.log, world.transport, world.config)
    with pytest.raises(ValueError, match="claimed branch None"):
        unclaimed.publish(pack(1, 1))
    assert unclaimed.prune() == 0
