"""Variants of a sweep: which there are, what each is called, and what its runs came to."""

import json
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tuning.sweep_table import Result, result_of, tabulate
from asyncrl.tuning.variant_run import is_finished
from asyncrl.tuning.variants import variants_of
from tests.unit.asyncrl.tuning.run_dirs import write_run


def test_every_combination_of_values_has_every_seed() -> None:
    variants = variants_of(["staleness.limit=0,2", "actor.lr=1e-4", "staleness.policy=wait,drop"], seeds=(0, 1))
    assert len(variants) == 8
    assert variants[0].overrides == (
        "actor.lr=1e-4",
        "staleness.limit=0",
        "staleness.policy=wait",
        "run.seed=0",
    )
    assert [variant.seed for variant in variants[:2]] == [0, 1], "seeds of one choice follow each other"
    assert {variant.label for variant in variants} == {
        f"staleness.limit={limit} staleness.policy={policy}" for limit in (0, 2) for policy in ("wait", "drop")
    }


def test_commas_within_brackets_belong_to_the_value() -> None:
    first, second = variants_of(["actor.betas=[0.9,0.95],[0.8,0.9]", "metrics.sinks=[]"], seeds=(0,))
    assert first.choice == (("actor.betas", "[0.9,0.95]"),)
    assert second.choice == (("actor.betas", "[0.8,0.9]"),)
    assert first.fixed == ("metrics.sinks=[]",)


def test_names_are_directories_and_differ_with_whatever_differs() -> None:
    several = variants_of(["data.train_files=[a/b.parquet],[c d]", "actor.lr=1e-4,2e-4"], seeds=range(3))
    others = variants_of(["data.train_files=[a/b.parquet],[c d]", "actor.lr=1e-4,2e-4", "rollout.n=3"], seeds=range(3))
    alone = variants_of([], seeds=(0, 1))
    names = [variant.name for variant in (*several, *others, *alone)]
    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= 64
        assert not set(name) & set("/ =[],")
        assert name[0].isalnum()
    assert variants_of(["rollout.n=3"], seeds=(0,))[0].label == "as configured"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["staleness.limit"], "is no key=value"),
        (["run.seed=1,2"], "run.seed is set by the sweep"),
        (["run.dir=x"], "run.dir is set by the sweep"),
        (["rollout.n=1", "rollout.n=2"], "rollout.n is given twice"),
        (["rollout.n=1,,2"], "has an empty value"),
    ],
)
def test_what_cannot_be_meant_is_refused(overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        variants_of(overrides, seeds=(0,))


def result(held_out: float | None, tokens_per_s: float) -> Result:
    return Result(held_out, tokens_per_s, stall_share=0.5, lag_mean=1.0, stale_share=0.0, step_s=2.0)


def test_the_table_has_mean_and_spread_over_seeds_and_the_best_first() -> None:
    variants = variants_of(["staleness.limit=0,2,4"], seeds=(0, 1))
    scores = (0.5, 0.7, 0.8, 0.9, None, None)
    results = {
        variant: result(score, 100.0 + i) for i, (variant, score) in enumerate(zip(variants, scores, strict=True))
    }
    best, second, unscored = tabulate(results)
    assert (best.label, best.seeds) == ("staleness.limit=2", 2)
    assert (best.held_out, best.tokens_per_s) == (pytest.approx(0.85), pytest.approx(102.5))
    assert best.held_out_spread == pytest.approx(0.05 * 2**0.5)
    assert second.held_out == pytest.approx(0.6)
    assert (unscored.label, unscored.held_out, unscored.held_out_spread) == ("staleness.limit=4", None, None)
    assert tabulate({variants[0]: results[variants[0]]})[0].held_out_spread is None, "one seed has no spread"


def test_a_result_is_read_from_what_a_run_leaves(tmp_path: Path) -> None:
    found = result_of(write_run(tmp_path, steps=4, held_out=0.75))
    assert (found.held_out, found.tokens_per_s, found.step_s) == (0.75, 250.0, 2.0)
    assert found.stale_share == pytest.approx(20 / 36)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lines[0]["timing_s/step"] = 100.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert result_of(tmp_path) == found, "what the first step compiles says nothing about the others"
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no training step"):
        result_of(tmp_path)


def test_only_a_run_that_came_to_its_end_is_finished(tmp_path: Path) -> None:
    assert not is_finished(tmp_path)
    write_run(tmp_path)
    assert is_finished(tmp_path)
    (tmp_path / "outcome.json").write_text(json.dumps({"reason": "stopped"}))
    assert not is_finished(tmp_path)
    (tmp_path / "outcome.json").write_text("{")
    assert not is_finished(tmp_path)
