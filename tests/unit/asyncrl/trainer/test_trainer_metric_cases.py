"""Bugs that other projects had with metrics, by their ids, in the code that measures, times, writes and shows here."""

import json
import math
from pathlib import Path

import pytest
import torch

from asyncrl import waits
from asyncrl.algorithms import resolve
from asyncrl.algorithms.aggregation import Denominators
from asyncrl.algorithms.objective import policy_objective
from asyncrl.config import ActorConfig, AlgorithmConfig
from asyncrl.metrics.console import number
from asyncrl.metrics.sinks import JsonlSink
from asyncrl.metrics.timing import WaitTimes
from asyncrl.report.lines import read
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.micro_batch import MicroBatch, empty_micro_batch
from asyncrl.trainer.mismatch import measure_mismatch
from asyncrl.trainer.tally import Tally


def micro(ratios: list[float]) -> tuple[MicroBatch, torch.Tensor]:
    """One row of tokens whose weights, trainer over sampler, are these; and the trainer's logprobs."""
    trainer_RS = torch.full((1, len(ratios)), -1.0)
    sampler_RS = trainer_RS - torch.tensor([ratios]).log()
    empty = empty_micro_batch(torch.device("cpu"), is_packed=True)
    values = {**vars(empty), "sampler_RS": sampler_RS, "lags_RS": torch.zeros(1, len(ratios)).long(), "lags": (0,)}
    return MicroBatch(**{**values, "mask_RS": torch.ones(1, len(ratios), dtype=torch.bool)}), trainer_RS


def test_ratios_are_told_before_and_after_they_are_cut() -> None:
    """B199: ratios 0.5, 1 and 9 with a cap of 3: the raw extreme, the cut one, and the share that was cut."""
    algorithm = resolve(AlgorithmConfig(correction="tis", correction_cap=3.0), ActorConfig())
    batch, trainer_RS = micro([0.5, 1.0, 9.0])
    tally = Tally()
    measure_mismatch(batch, trainer_RS, tally)
    objective = policy_objective(
        algorithm,
        trainer_RS.clone().requires_grad_(),
        batch.sampler_RS,
        torch.ones_like(trainer_RS),
        batch.mask_RS,
        Denominators(3, 1, 1),
    )
    tally.take(objective.metrics, objective.extremes)
    values = renamed(tally.values())
    assert values["rollout_corr/rollout_is_raw_max"] == pytest.approx(9.0, rel=1e-5)
    assert values["rollout_corr/rollout_is_raw_min"] == pytest.approx(0.5, rel=1e-5)
    assert values["rollout_corr/rollout_is_max"] == pytest.approx(3.0)
    assert values["rollout_corr/rollout_is_ratio_fraction_high"] == pytest.approx(1 / 3)


def test_a_number_that_is_none_is_written_so_that_strict_readers_take_it(tmp_path: Path) -> None:
    """B201: an infinite loss at step 3 is text that every JSON reader takes, and a number again for the report."""
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for step, loss in ((1, 0.5), (3, math.inf), (4, math.nan)):
        sink.write(step, 1, {"actor/pg_loss": loss})
    sink.close()

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    rows = [json.loads(text, parse_constant=refuse) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["actor/pg_loss"] for row in rows] == [0.5, "inf", "nan"]
    losses = [line.values["actor/pg_loss"] for line in read(tmp_path)]
    assert losses[1] == math.inf
    assert math.isnan(losses[2])


@pytest.mark.parametrize(("value", "shown"), [(3.2e-6, "3.2e-06"), (0.0, "0")])
def test_a_small_number_does_not_look_dead(value: float, shown: str) -> None:
    """B202: a gradient norm of 3.2e-6 and an exact 0 are told apart."""
    assert number(value) == shown


def test_every_idle_span_of_a_step_counts_also_the_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """B203: within 9 s idle from 2 to 4 and from 6 to 8, and since 8.5: half of the time, and never more than all."""
    now = [0.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: now[0])
    times, name = WaitTimes(), "test waits for groups"
    for start_s, end_s in ((2.0, 4.0), (6.0, 8.0)):
        now[0] = start_s
        with waits.timed(name):
            now[0] = end_s
    now[0] = 8.5
    with waits.timed(name):
        now[0] = 9.0
        assert times.drain()[f"timing_s/wait/{name}"] / 9.0 == 0.5
        now[0] = 10.0
        assert times.drain()[f"timing_s/wait/{name}"] / 1.0 == 1.0, "all of the next step so far"
    assert f"timing_s/wait/{name}" not in times.drain()


@pytest.mark.parametrize("weight", [0.25, 1.0, 4.0])
def test_the_effective_sample_size_of_a_lag_falls_with_the_spread_of_its_weights(weight: float) -> None:
    """Of every lag by itself: equal weights make 1, whatever their size."""
    batch, trainer_RS = micro([weight, weight, 1.0, 3.0])
    batch = MicroBatch(**{**vars(batch), "lags_RS": torch.tensor([[2, 2, 0, 0]]), "lags": (0, 2)})
    tally = Tally()
    measure_mismatch(batch, trainer_RS, tally)
    values = tally.values()
    assert values["training/off_policy/lag_2/ess"] == pytest.approx(1.0)
    assert values["training/off_policy/lag_0/ess"] == pytest.approx(4.0 / 5.0)
