"""A model that keeps copies of its weights is told which words the loader wrote: all of them, once, or nothing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.fused_model import FusedModel, bits, checkpoint, engine_of, same_bits, stepped
from tests.unit.weightsync.test_preparation import prepare
from tests.unit.weightsync.test_sglang_loader import Stage, load
from weightsync import sglang_loader
from weightsync.preparation import READY
from weightsync.versions import pack

L = sglang_loader
V1, V2 = pack(1, 1), pack(1, 2)


class Copied:
    """Copies of a model's parameters that follow what the loader says, and nothing else."""

    def __init__(self, model: FusedModel) -> None:
        self.model, self.num_calls, self.num_words = model, 0, 0
        self.words = {p.data_ptr(): p.detach().clone().view(torch.int16).view(-1) for p in model.parameters()}
        model.words_written = self.hear  # type: ignore[assignment]  # as an engine's model may have it

    def hear(self, changes: Iterable[tuple[Tensor, Any]]) -> None:
        self.num_calls += 1
        for words, where in changes:
            places = where if isinstance(where, slice | Tensor) else torch.from_numpy(where)
            mine = self.words[words.data_ptr()]
            mine[places] = words[places]
            self.num_words += len(mine[places])

    def follow(self) -> bool:
        parameters = self.model.parameters()
        return all(torch.equal(self.words[p.data_ptr()], p.detach().view(torch.int16).view(-1)) for p in parameters)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)
    monkeypatch.setenv(L.STAGE_DIR, str(made.directory))
    return made


def test_copies_follow_deltas_prepared_or_not_and_anchors(kernels: str, stage: Stage) -> None:
    model, weights = engine_of(stage.model_dir), checkpoint()
    copied, held = Copied(model), stage.model_dir
    for number, anchor in enumerate([False, False, True, False], 1):
        weights = stepped(weights, number)
        new = stage.save(weights, f"version-{number}")
        base = None if anchor else pack(1, number - 1) if number > 1 else 0
        stage.put(new, base=base, target=pack(1, number), old=held)
        if number in (2, 4):
            assert prepare(model) == READY
        copied.num_words = 0
        status, held = load(model), new
        assert (status[0], copied.num_calls) == (L.APPLIED, number)
        assert copied.num_words >= status[5] > 0
        assert anchor or copied.num_words == status[5], "only words that changed are named"
        assert copied.follow()
        assert same_bits(bits(model), bits(engine_of(new)))


def test_nothing_is_said_of_a_version_that_is_taken_back(kernels: str, stage: Stage) -> None:
    model = engine_of(stage.model_dir)
    copied = Copied(model)
    stage.put(stage.save(stepped(checkpoint(), 1), "one"), digest=1)
    assert load(model)[0] == L.RESULT_DIGEST
    assert copied.num_calls == 0
    assert copied.follow()
