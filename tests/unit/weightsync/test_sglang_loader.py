"""The loader inside the server: all or nothing, never raises, and says what it did."""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support.fused_model import FusedModel, bits, checkpoint, engine_of, same_bits, save_checkpoint, stepped
from tests.support.rank_threads import RankThread, RankThreads
from weightsync import engine_runs, engine_weights, sglang_loader
from weightsync.buckets import BucketPlan
from weightsync.codec import Encoder, FrameHeader, open_frame
from weightsync.digest import digest_of_model_dir
from weightsync.engine_runs import Added, Foreseen, Runs
from weightsync.errors import CorruptDelta
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.ticket import TICKET, PartsWriter, Staged, Ticket, put_layout, put_plan, put_ticket
from weightsync.versions import pack
from weightsync.vllm_worker import LoadsStaged

L = sglang_loader


class Stage:
    """A stage directory that a test fills as a receiver would, from two model directories."""

    def __init__(self, root: Path) -> None:
        self.root, self.directory = root, root / "stage"
        self.directory.mkdir()
        self.model_dir = self.save(checkpoint(), "model")
        self.manifest = Manifest.from_model_dir(self.model_dir, "bfloat16")
        self.plan = BucketPlan.whole(self.manifest, 300)

    def save(self, weights: dict[str, Tensor], name: str) -> Path:
        return save_checkpoint(weights, self.root / name)

    def digest(self, model_dir: Path) -> int:
        return digest_of_model_dir(model_dir, self.manifest)

    def put(
        self, new: Path, *, base: int | None = 0, target: int = pack(1, 1), old: Path | None = None, **changes: object
    ) -> Ticket:
        """Stage `old` (the model directory) -> `new`; without a base as an anchor."""
        before, after = ModelDir(old or self.model_dir), ModelDir(new)
        writer = PartsWriter(self.directory, f"parts-{target}.bin")
        for bucket in self.plan.buckets:
            pieces = [
                np.concatenate([d.words(s.tensor)[s.start : s.end] for s in bucket.segments]) for d in (before, after)
            ]
            if base is None:
                writer.add(bucket, None, pieces[1])
                continue
            header = FrameHeader(1, base, target, bucket.id)
            encoded = Encoder().delta(*pieces, header, self.plan.table(bucket), 0)
            if encoded is not None:
                frame = open_frame(encoded.frame, bucket=bucket, header=header)
                writer.add(bucket, frame.planes, frame.dense)
        put_layout(self.directory, self.manifest.layout_id, self.manifest.tensors)
        put_plan(self.directory, self.plan.plan_id, self.plan.buckets, self.manifest.tensors)
        size = writer.finish()
        ticket = Ticket(
            kind="delta" if base is not None else "anchor",
            base=base,
            base_digest=self.digest(old or self.model_dir) if base is not None else None,
            target=target,
            digest=self.digest(new),
            layout=self.manifest.layout_id,
            plan=self.plan.plan_id,
            model_dir=str(self.model_dir),
            parts=f"parts-{target}.bin",
            num_bytes=size,
            entries=tuple(writer.entries),
        )
        ticket = replace(ticket, **changes)  # type: ignore[arg-type]  # fields by name
        put_ticket(self.directory, ticket)
        return ticket


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)
    monkeypatch.setenv(L.STAGE_DIR, str(made.directory))
    monkeypatch.delenv(L.MODEL_VERSION, raising=False)
    return made


def load(model: FusedModel) -> list[int]:
    L.load(model, [("@weightsync", torch.empty(0, dtype=torch.uint8))])
    status: list[int] = model.get_weights_by_name(L.STATUS)
    return status


def digest_in(status: list[int]) -> int:
    return status[3] << 32 | status[4]


def test_a_delta_is_added_in_place_and_reported(stage: Stage) -> None:
    new = stepped(checkpoint(), 1)
    model, where = engine_of(stage.model_dir), stage.save(new, "new")
    addresses = [p.data_ptr() for p in model.parameters()]
    stage.put(where)
    status = load(model)
    assert status[:3] == [L.APPLIED, 1, 1]
    assert digest_in(status) == stage.digest(where)
    changed = sum(int((new[n].view(torch.int16) != w.view(torch.int16)).sum()) for n, w in checkpoint().items())
    assert status[5] == changed
    assert same_bits(bits(model), bits(engine_of(where)))
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert model.lm_head is model.embed
    note = json.loads((stage.directory / "status-0.json").read_text())
    assert (note["code"], note["version"]) == (0, "1.1")


def test_a_worker_of_vllm_loads_and_tells_the_same_through_its_methods(stage: Stage) -> None:
    class VllmsOwn:
        model_runner = SimpleNamespace(get_model=lambda: model)

    class Worker(VllmsOwn, LoadsStaged):  # as vLLM mixes them
        pass

    new = stepped(checkpoint(), 1)
    model, where = engine_of(stage.model_dir), stage.save(new, "new")
    worker = Worker()
    assert worker.weight_status()[0] == L.FAILED, "nothing was loaded yet"
    stage.put(where)
    status = worker.load_staged()
    assert (status[:3], digest_in(status)) == ([L.APPLIED, 1, 1], stage.digest(where))
    assert worker.weight_status() == status
    assert same_bits(bits(model), bits(engine_of(where)))


def test_words_that_become_nan_infinite_or_negative_zero_arrive_bit_for_bit(stage: Stage) -> None:
    new = checkpoint()
    for value, word in enumerate((0x7FC1, 0xFF80, 0x8000, 0x0001, 0x7F80)):
        new["model.norm.weight"].view(torch.int16)[value] = word - (1 << 16) if word >> 15 else word
    model = engine_of(stage.model_dir)
    stage.put(stage.save(new, "new"))
    assert load(model)[0] == L.APPLIED
    assert torch.equal(model.norm.view(torch.int16), new["model.norm.weight"].view(torch.int16))


def test_an_anchor_is_taken_from_any_base_and_heals_damaged_weights(stage: Stage) -> None:
    new = stage.save(stepped(checkpoint(), 1, 1.0), "new")
    model = engine_of(stage.model_dir)
    model.norm.data[3] += 1
    model.qkv_0.data[5, 5] = 17
    stage.put(new, base=None, target=pack(2, 7))
    status = load(model)
    assert status[:3] == [L.APPLIED, 2, 7]
    assert digest_in(status) == stage.digest(new)
    assert same_bits(bits(model), bits(engine_of(new)))


def refused(stage: Stage, model: FusedModel, code: int) -> list[int]:
    """Load, and check that the refusal left every bit and the version alone."""
    held = getattr(model, "_weightsync_engine", None)
    before, version = bits(model), held.version if held is not None else 0
    status = load(model)
    assert status[0] == code, L.CODES[status[0]]
    assert same_bits(before, bits(model))
    assert model.__dict__["_weightsync_engine"].version == version
    return status


def test_a_delta_on_another_base_is_refused(stage: Stage) -> None:
    new = stage.save(stepped(checkpoint(), 1), "new")
    stage.put(new, base=pack(1, 1), target=pack(1, 2))
    refused(stage, engine_of(stage.model_dir), L.WRONG_BASE)


def test_the_same_delta_twice_is_applied_once(stage: Stage) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    model = engine_of(stage.model_dir)
    load(model)
    refused(stage, model, L.ALREADY)


def test_a_branch_with_the_same_number_is_another_version(stage: Stage) -> None:
    one, two = (stage.save(stepped(checkpoint(), seed), f"new{seed}") for seed in (1, 2))
    model = engine_of(stage.model_dir)
    stage.put(one, target=pack(1, 1))
    load(model)
    stage.put(two, target=pack(2, 2), base=pack(2, 1), old=one)
    refused(stage, model, L.WRONG_BASE)


def test_weights_that_are_not_the_bases_are_refused_before_a_word_is_written(stage: Stage) -> None:
    model = engine_of(stage.model_dir)
    model.norm.data[3] += 1
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    refused(stage, model, L.BASE_DIGEST)


def damaged(stage: Stage) -> FusedModel:
    """An engine at version 1.1 in which a word changed since, and a delta to 1.2 that leaves this word alone."""
    old = stage.save(stepped(checkpoint(), 1), "old")
    model = engine_of(stage.model_dir)
    stage.put(old)
    load(model)
    model.norm.data[3] += 1
    new = stepped(checkpoint(), 1)
    new["model.embed_tokens.weight"][3] += 1
    stage.put(stage.save(new, "new"), base=pack(1, 1), target=pack(1, 2), old=old)
    return model


def test_a_word_that_changed_behind_the_loaders_back_is_found_although_no_delta_touches_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    model = damaged(stage)
    before = bits(model)
    assert load(model)[:3] == [L.BASE_DIGEST, (1 << 32) - 1, (1 << 32) - 1], "an anchor is needed"
    assert "words of model.norm.weight changed" in caplog.text
    assert same_bits(before, bits(model))
    stage.put(stage.root / "new", base=None, target=pack(1, 2))
    assert load(model)[:3] == [L.APPLIED, 1, 2]
    assert same_bits(bits(model), bits(engine_of(stage.root / "new")))


def test_every_word_is_read_again_within_some_activations_and_not_in_each(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_weights, "_LEAST_CHECKED", 1)
    monkeypatch.setattr(engine_weights, "CHECKS_PER_ROUND", 8)
    model, old = damaged(stage), stage.root / "new"
    codes = [load(model)[0]]
    for number in range(3, 20):
        if codes[-1] == L.BASE_DIGEST:
            break
        new = load_file(old / "model.safetensors")
        new["model.embed_tokens.weight"][number] += 1
        where = stage.save(new, f"v{number}")
        stage.put(where, base=pack(1, number - 1), target=pack(1, number), old=old)
        codes.append(load(model)[0])
        old = where
    assert codes[0] == L.APPLIED, "the last tensor is not read first"
    assert codes[-1] == L.BASE_DIGEST
    assert len(codes) <= 8


def test_a_changed_word_that_a_delta_touches_shows_in_the_result(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_weights, "_LEAST_CHECKED", 1)
    old = stage.save(stepped(checkpoint(), 1), "old")
    model = engine_of(stage.model_dir)
    stage.put(old)
    load(model)
    model.norm.data[3] += 1
    changed = stepped(checkpoint(), 1)
    changed["model.norm.weight"][3] = 9.0
    stage.put(stage.save(changed, "new"), base=pack(1, 1), target=pack(1, 2), old=old)
    refused(stage, model, L.RESULT_DIGEST)


def test_a_result_that_is_not_the_published_one_is_refused(stage: Stage) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"), digest=5)
    refused(stage, engine_of(stage.model_dir), L.RESULT_DIGEST)


@pytest.mark.parametrize("name", [TICKET, "layout", "plan", "parts"])
@pytest.mark.parametrize("how", ["missing", "cut", "garbage"])
def test_a_stage_directory_that_is_damaged_is_refused(stage: Stage, name: str, how: str) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    (file,) = stage.directory.glob(f"{name}*")
    raw = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "cut":
        file.write_bytes(raw[: len(raw) // 2])
    else:
        file.write_bytes(bytes(255 - b for b in raw))
    model = engine_of(stage.model_dir)
    before = bits(model)
    assert load(model)[0] in (L.BAD_TICKET, L.BAD_PART, L.RESULT_DIGEST)
    assert same_bits(before, bits(model))


def test_any_byte_of_the_parts_that_is_changed_is_noticed(stage: Stage) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    (file,) = stage.directory.glob("parts*")
    raw, rng = file.read_bytes(), np.random.default_rng(0)
    unchanged, changed = (bits(engine_of(directory)) for directory in (stage.model_dir, stage.root / "new"))
    model = engine_of(stage.model_dir)
    for at in rng.choice(len(raw), 60, replace=False):
        bad = bytearray(raw)
        bad[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(bad)
        code = load(model)[0]
        if code == L.APPLIED:  # a byte between two planes may be anything
            assert same_bits(changed, bits(model))
            model = engine_of(stage.model_dir)
        assert code in (L.APPLIED, L.BAD_PART, L.RESULT_DIGEST)
        assert same_bits(unchanged, bits(model))


@pytest.mark.parametrize(
    "change",
    [
        {"entries": [[0, 0, 1, 1, 0, 1 << 40]]},
        {"entries": [[0, 0, -1, 1, 0, 0]]},
        {"entries": [[9999, 1, 1, 0, 0, 0]]},
        {"entries": [[0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0]]},
        {"entries": [[0, 0, 1 << 62, 1 << 62, 0, 0]]},
        {"entries": [[0, 0, 1.5, 1, 0, 0]]},
        {"entries": [[0]]},
        {"kind": "surprise"},
        {"kind": "anchor"},
        {"base": None},
        {"base": -1},
        {"target": "1.1"},
        {"format": 2},
        {"parts": "../../etc/passwd"},
        {"layout": "../model"},
        {"surprise": 1},
    ],
)
def test_a_ticket_that_contradicts_itself_is_refused(stage: Stage, change: dict[str, object]) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    path = stage.directory / TICKET
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    model = engine_of(stage.model_dir)
    before = bits(model)
    assert load(model)[0] in (L.BAD_TICKET, L.BAD_PART, L.RESULT_DIGEST)
    assert same_bits(before, bits(model))


def test_without_a_stage_directory_it_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(L.STAGE_DIR)
    assert load(engine_of(stage.model_dir))[0] == L.BAD_TICKET


def test_an_engine_with_another_model_is_refused_by_name(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    model = engine_of(stage.model_dir)
    own = model.load_weights
    model.load_weights = lambda weights: own((n, w) for n, w in weights if "mlp.up" not in n)  # type: ignore[method-assign]
    before = bits(model)
    assert load(model)[0] == L.BAD_LAYOUT
    assert "model.layers.0.mlp.up_proj.weight" in caplog.text
    assert same_bits(before, bits(model))


def test_a_ticket_of_another_layout_does_not_spoil_the_next_one(stage: Stage) -> None:
    new = stage.save(stepped(checkpoint(), 1), "new")
    stage.put(new)
    model = engine_of(stage.model_dir)
    load(model)
    (layout,) = stage.directory.glob("layout-*.json")
    (stage.directory / "layout-other.json").write_text(layout.read_text().replace("model.norm", "model.other"))
    stage.put(stage.save(checkpoint(), "old"), base=pack(1, 1), target=pack(1, 2), old=new, layout="other")
    assert load(model)[0] == L.BAD_LAYOUT
    stage.put(stage.root / "old", base=pack(1, 1), target=pack(1, 2), old=new)
    assert load(model)[:3] == [L.APPLIED, 1, 2]
    assert same_bits(bits(model), bits(engine_of(stage.model_dir)))


def test_a_model_whose_loader_fails_in_any_way_does_not_take_the_server_down(stage: Stage) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    model = engine_of(stage.model_dir)

    def broken(weights: object) -> None:
        raise RuntimeError("no weights today")

    model.load_weights = broken  # type: ignore[method-assign]
    assert load(model)[0] != L.APPLIED


def test_a_tensor_that_the_engine_computes_with_goes_through_its_own_loader(stage: Stage) -> None:
    model = engine_of(stage.model_dir, scaled_norm=True)
    versions = [stage.save(stepped(checkpoint(), seed, 0.4), f"v{seed}") for seed in (1, 2, 3)]
    held, old = 0, stage.model_dir
    for i, new in enumerate(versions):
        whole = i == 2
        stage.put(new, base=None if whole else held, target=pack(1, i + 1), old=old)
        status = load(model)
        assert status[0] == L.APPLIED
        assert digest_in(status) == stage.digest(new)
        assert same_bits(bits(model), bits(engine_of(new)))
        held, old = pack(1, i + 1), new


def test_an_engine_that_has_packed_its_weights_away_is_refused_before_a_word_is_written(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """As vLLM's linear layers on a CPU: until a delta came, their words would pass for those of the directory."""
    model = engine_of(stage.model_dir)
    model.norm = torch.nn.Parameter(torch.empty(0, dtype=torch.bfloat16), requires_grad=False)
    before = bits(model)
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    assert load(model)[0] == L.BAD_LAYOUT
    assert "packed copies of norm and 0 more" in caplog.text
    assert same_bits(bits(model), before)


def test_an_error_while_writing_leaves_no_version_and_an_anchor_repairs_it(stage: Stage) -> None:
    new = stage.save(stepped(checkpoint(), 1), "new")
    model = engine_of(stage.model_dir)
    stage.put(new)
    model.post_load_weights = lambda: 1 / 0  # type: ignore[assignment]
    status = load(model)
    assert status[:3] == [L.DIRTY, (1 << 32) - 1, (1 << 32) - 1]
    del model.post_load_weights
    assert load(model)[0] == L.WRONG_BASE
    stage.put(new, base=None, target=pack(1, 1))
    assert load(model)[:3] == [L.APPLIED, 1, 1]
    assert same_bits(bits(model), bits(engine_of(new)))


def test_weights_that_moved_are_mapped_again(stage: Stage) -> None:
    one, two = (stage.save(stepped(checkpoint(), seed), f"new{seed}") for seed in (1, 2))
    model = engine_of(stage.model_dir)
    stage.put(one)
    load(model)
    model.qkv_0.data = model.qkv_0.data.clone()
    stage.put(two, base=pack(1, 1), target=pack(1, 2), old=one)
    assert load(model)[0] == L.APPLIED
    assert same_bits(bits(model), bits(engine_of(two)))
    model.qkv_0.data = torch.zeros_like(model.qkv_0.data)
    stage.put(one, base=pack(1, 2), target=pack(1, 3), old=two)
    assert load(model)[0] == L.BASE_DIGEST


def test_inspection_measures_and_changes_nothing(stage: Stage) -> None:
    put_layout(stage.directory, stage.manifest.layout_id, stage.manifest.tensors)
    put_ticket(
        stage.directory, Ticket("inspect", None, None, 0, 0, stage.manifest.layout_id, "", str(stage.model_dir), "", 0)
    )
    model = engine_of(stage.model_dir)
    before = bits(model)
    status = load(model)
    assert status[:3] == [L.APPLIED, 0, 0]
    assert digest_in(status) == stage.digest(stage.model_dir)
    assert same_bits(before, bits(model))
    model.norm.data[0] += 1
    assert digest_in(load(model)) != digest_in(status)


@pytest.mark.parametrize(("label", "expected"), [("3.41", [0, 3, 41]), ("nonsense", [0, (1 << 32) - 1, (1 << 32) - 1])])
def test_the_environment_says_which_version_the_server_started_from(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, label: str, expected: list[int]
) -> None:
    monkeypatch.setenv(L.MODEL_VERSION, label)
    put_layout(stage.directory, stage.manifest.layout_id, stage.manifest.tensors)
    put_ticket(
        stage.directory, Ticket("inspect", None, None, 0, 0, stage.manifest.layout_id, "", str(stage.model_dir), "", 0)
    )
    assert load(engine_of(stage.model_dir))[:3] == expected


def test_other_names_still_reach_the_models_own_method(stage: Stage) -> None:
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    model = engine_of(stage.model_dir)
    model.get_weights_by_name = lambda name, truncate_size=100, tp_size=1: [name, truncate_size, tp_size]  # type: ignore[assignment]
    load(model)
    assert model.get_weights_by_name("x", 7, tp_size=2) == ["x", 7, 2]
    other = engine_of(stage.model_dir)
    load(other)
    with pytest.raises(AttributeError):
        other.get_weights_by_name("x")


class Ranks:
    """Engines of several tensor-parallel ranks, each in a thread of its own."""

    def __init__(self, stage: Stage, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.group, self.here = RankThreads(world), threading.local()
        self.models = [engine_of(stage.model_dir, rank, world) for rank in range(world)]
        monkeypatch.setattr(L, "find_peers", lambda: self.here.rank)

    def load(self) -> list[list[int]]:
        def one(rank: RankThread) -> list[int]:
            self.here.rank = rank
            return load(self.models[rank.rank])

        return [status for status in self.group.run(one) if isinstance(status, list)]

    def each(self, check: Callable[[FusedModel], bool]) -> bool:
        return all(check(model) for model in self.models)


@pytest.mark.parametrize("world", [2, 4])  # with 4 ranks and 2 key-value heads, heads are replicated
def test_tensor_parallel_ranks_add_up_to_the_digest_and_apply_together(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    ranks = Ranks(stage, world, monkeypatch)
    old, held = stage.model_dir, 0
    for number, whole in ((1, False), (2, False), (3, True), (4, False)):
        new = stage.save(stepped(checkpoint(), number), f"v{number}")
        stage.put(new, base=None if whole else held, target=pack(1, number), old=old)
        statuses = ranks.load()
        assert [status[:3] for status in statuses] == [[L.APPLIED, 1, number]] * world
        assert {digest_in(status) for status in statuses} == {stage.digest(new)}
        assert ranks.each(lambda model: same_bits(bits(model), bits(engine_of(new, model.rank, world))))  # noqa: B023  # called here
        old, held = new, pack(1, number)


def test_if_one_rank_cannot_none_does(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(stage, 2, monkeypatch)
    one = stage.save(stepped(checkpoint(), 1), "one")
    stage.put(one)
    ranks.load()
    before = [bits(model) for model in ranks.models]
    ranks.models[1].o_0.data[0, 0] += 1  # rank 1's weights are damaged
    ranks.models[1].o_0.data = ranks.models[1].o_0.data.clone()  # and moved, so that they are measured
    before[1] = bits(ranks.models[1])
    stage.put(stage.save(stepped(checkpoint(), 2), "two"), base=pack(1, 1), target=pack(1, 2), old=one)
    assert [status[0] for status in ranks.load()] == [L.BASE_DIGEST] * 2
    assert all(same_bits(was, bits(model)) for was, model in zip(before, ranks.models, strict=True))


@pytest.mark.parametrize("damage", [CorruptDelta("a change that does not fit"), MemoryError("no room")])
def test_what_one_rank_added_is_taken_back_if_another_one_cannot_add(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, damage: Exception
) -> None:
    ranks = Ranks(stage, 2, monkeypatch)
    one = stage.save(stepped(checkpoint(), 1), "one")
    stage.put(one)
    ranks.load()
    before = [bits(model) for model in ranks.models]
    runs = [model.__dict__["_weightsync_engine"]._weights._runs for model in ranks.models]
    added, own = [], Runs.add

    def add(self: Runs, staged: Sequence[Staged], foreseen: Foreseen | None = None) -> list[Added]:
        found = own(self, staged, foreseen)
        added.append(len(found))
        if self is runs[1]:
            raise damage
        return found

    stage.put(stage.save(stepped(checkpoint(), 2), "two"), base=pack(1, 1), target=pack(1, 2), old=one)
    with monkeypatch.context() as patch:
        patch.setattr(Runs, "add", add)
        statuses = ranks.load()
    assert min(added) > 0, "both ranks added before the second one failed"
    code = L.BAD_PART if isinstance(damage, CorruptDelta) else L.FAILED
    assert [status[:3] for status in statuses] == [[code, 1, 1]] * 2
    assert all(same_bits(was, bits(model)) for was, model in zip(before, ranks.models, strict=True))
    assert [status[:3] for status in ranks.load()] == [[L.APPLIED, 1, 2]] * 2


def test_adding_that_is_interrupted_within_a_run_leaves_no_version_until_an_anchor_comes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = stage.save(stepped(checkpoint(), 1), "new")
    stage.put(new)
    model, own = engine_of(stage.model_dir), engine_runs._add
    calls = iter(range(1000))

    def interrupted(*arguments: Any) -> int:
        gain = own(*arguments)
        if next(calls) == 5:
            raise MemoryError("no room")
        return gain

    with monkeypatch.context() as patch:
        patch.setattr(engine_runs, "_add", interrupted)
        assert load(model)[:3] == [L.DIRTY, (1 << 32) - 1, (1 << 32) - 1]
    assert load(model)[0] == L.WRONG_BASE, "a delta has nothing to stand on"
    stage.put(new, base=None)
    assert load(model)[:3] == [L.APPLIED, 1, 1]
    assert same_bits(bits(model), bits(engine_of(new)))


def test_replicas_that_differ_are_noticed_although_only_one_is_counted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(stage, 2, monkeypatch)
    ranks.models[1].norm.data[2] += 1  # rank 0's norm is the one in the digest
    stage.put(stage.save(stepped(checkpoint(), 1), "new"))
    assert [status[0] for status in ranks.load()] == [L.FAILED] * 2
    stage.put(stage.root / "new", base=None)
    assert [status[0] for status in ranks.load()] == [L.APPLIED] * 2
