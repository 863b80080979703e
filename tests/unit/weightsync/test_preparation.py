"""What the loader does before the pause is a shortcut to the same bits, and is not trusted once anything changed."""

import threading
from pathlib import Path

import pytest
import torch

from tests.support.fused_model import FusedModel, bits, checkpoint, engine_of, same_bits, stepped
from tests.unit.weightsync.test_sglang_loader import Ranks, Stage, damaged, digest_in, load
from weightsync import engine_runs, engine_weights, sglang_loader
from weightsync.preparation import GOING_ON, NOTHING, PREPARE, READY
from weightsync.versions import pack

L = sglang_loader
V1, V2 = pack(1, 1), pack(1, 2)


def ask(model: FusedModel) -> int:
    (answer,) = model.get_weights_by_name(PREPARE)
    return int(answer)


def prepare(model: FusedModel) -> int:
    """Begin, wait, ask again."""
    first = ask(model)
    for thread in threading.enumerate():
        if thread.name == "weightsync-prepare":
            thread.join()
    return ask(model) if first == GOING_ON else first


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)
    monkeypatch.setenv(L.STAGE_DIR, str(made.directory))
    return made


@pytest.fixture
def second(stage: Stage) -> tuple[FusedModel, Path]:
    """An engine at 1.1 with a delta to 1.2 staged, and the directory of 1.2."""
    model, one = engine_of(stage.model_dir), stage.save(stepped(checkpoint(), 1), "one")
    stage.put(one)
    assert load(model)[0] == L.APPLIED
    two = stage.save(stepped(stepped(checkpoint(), 1), 2), "two")
    stage.put(two, base=V1, target=V2, old=one)
    return model, two


def test_a_prepared_delta_is_applied_as_one_that_is_not(
    kernels: str,
    stage: Stage,
    second: tuple[FusedModel, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, two = second
    before = bits(model)
    assert prepare(model) == READY
    assert same_bits(before, bits(model)), "nothing is written"
    with monkeypatch.context() as patch:
        patch.setattr(engine_runs, "decode_on_cpu", None)  # nothing is left to decode in the pause
        status = load(model)
    assert (status[:3], digest_in(status)) == ([L.APPLIED, 1, 2], stage.digest(two))
    assert same_bits(bits(model), bits(engine_of(two)))
    assert load(model)[0] == L.ALREADY


@pytest.mark.parametrize("touched", [True, False])
def test_a_word_that_changed_after_it_was_prepared_is_noticed(
    kernels: str, touched: bool, second: tuple[FusedModel, Path]
) -> None:
    model, two = second
    old, new = bits(model), bits(engine_of(two))
    assert prepare(model) == READY
    name = "qkv_1"
    differs = (old[name] != new[name]).flatten()
    at = int(torch.nonzero(differs == touched)[-1])
    parameter = dict(model.named_parameters())[name].data.flatten()
    parameter.view(torch.int16)[at] ^= 1
    before = bits(model)
    code = load(model)[0]
    if touched:
        assert code == L.RESULT_DIGEST
        assert same_bits(before, bits(model)), "every word is as it was"
    else:
        assert code == L.APPLIED, "as without preparation, a later look finds it"


def test_what_is_damaged_when_it_is_prepared_is_refused_in_the_pause(stage: Stage) -> None:
    model = damaged(stage)
    before = bits(model)
    assert prepare(model) == READY
    assert load(model)[:3] == [L.BASE_DIGEST, (1 << 32) - 1, (1 << 32) - 1]
    assert same_bits(before, bits(model))


def test_another_ticket_than_the_prepared_one_is_worked_out_anew(
    stage: Stage,
    second: tuple[FusedModel, Path],
) -> None:
    model, _ = second
    assert prepare(model) == READY
    three = stage.save(stepped(stepped(checkpoint(), 1), 3), "three")
    stage.put(three, base=V1, target=pack(1, 3), old=stage.root / "one")
    status = load(model)
    assert (status[:3], digest_in(status)) == ([L.APPLIED, 1, 3], stage.digest(three))
    assert same_bits(bits(model), bits(engine_of(three)))


def test_weights_that_moved_since_are_mapped_again(second: tuple[FusedModel, Path]) -> None:
    model, two = second
    assert prepare(model) == READY
    model.o_0.data = model.o_0.data.clone()
    assert load(model)[:3] == [L.APPLIED, 1, 2]
    assert same_bits(bits(model), bits(engine_of(two)))


def test_nothing_is_prepared_that_the_pause_would_refuse_or_take_whole(
    stage: Stage,
    second: tuple[FusedModel, Path],
) -> None:
    model, two = second
    stage.put(two, base=V2, target=pack(1, 3), old=two)
    assert prepare(model) == NOTHING, "another base"
    stage.put(two, base=None, target=V2)
    assert prepare(model) == NOTHING, "an anchor"
    stage.put(two, base=V1, target=V2, old=stage.root / "one")
    (parts,) = stage.directory.glob(f"parts-{V2}.bin")
    parts.write_bytes(parts.read_bytes()[:-9])
    assert prepare(model) == NOTHING, "a damaged part"
    assert load(model)[0] == L.BAD_PART
    (stage.directory / "ticket.json").write_text("{}")
    assert prepare(model) == NOTHING, "no ticket"


def test_more_changes_than_are_foreseen_are_worked_out_in_the_pause(
    second: tuple[FusedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_weights, "_MOST_FORESEEN_BYTES", 100)
    model, two = second
    assert prepare(model) == READY
    assert load(model)[:3] == [L.APPLIED, 1, 2]
    assert same_bits(bits(model), bits(engine_of(two)))


def test_ranks_of_which_one_is_prepared_apply_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(stage, 2, monkeypatch)
    one, two = (stage.save(stepped(checkpoint(), seed), f"v{seed}") for seed in (1, 2))
    stage.put(one)
    ranks.load()
    stage.put(two, base=V1, target=V2, old=one)
    assert prepare(ranks.models[1]) == READY
    assert [status[:3] for status in ranks.load()] == [[L.APPLIED, 1, 2]] * 2
    assert ranks.each(lambda model: same_bits(bits(model), bits(engine_of(two, model.rank, 2))))
