"""The staleness study trains at the lag that it says, the same again for the same seed, and counts what it drops."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.benches.staleness import figures, main
from scripts.benches.staleness_cases.conditions import SLOW, SORT, Condition, Task
from scripts.benches.staleness_cases.experiment import Experiment, Sizes, configuration

QUICK = (
    *("trainer.steps=5", "schedule.groups_per_step=2", "rollout.n=2", "inference.max_running_requests=32"),
    *("starter.model.hidden_size=16", "starter.model.heads=2", "starter.model.kv_heads=1", "starter.sft.steps=3"),
    *("starter.task.train_rows=16", "starter.task.val_rows=4"),
)
SIZES = Sizes(final_answers=2, curve_prompts=2, curve_answers=1, curve_every=2)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


def run(scratch: Path, task: Task, condition: Condition, seed: int = 0) -> dict[str, Any]:
    result = Experiment(configuration(task, condition, seed, scratch, QUICK), task, condition, SIZES).run()
    return {name: value for name, value in result.items() if name != "cpu_s"}


@pytest.mark.parametrize(("eta", "lags"), [(0, [0, 0, 0, 0, 0]), (2, [0, 1, 2, 2, 2]), (9, [0, 1, 2, 3, 4])])
def test_every_step_trains_on_groups_of_exactly_eta_versions_ago_or_of_the_first(
    scratch: Path, eta: int, lags: list[int]
) -> None:
    assert [line["lag"] for line in run(scratch, SORT, Condition(eta, "tis"))["steps"]] == lags


def test_the_same_seed_gives_the_same_run_and_another_seed_another(scratch: Path) -> None:
    condition = Condition(1, "tis")
    assert run(scratch, SORT, condition) == run(scratch, SORT, condition)
    assert run(scratch, SORT, condition)["steps"] != run(scratch, SORT, condition, seed=1)["steps"]


def test_two_conditions_begin_with_the_same_prompts_and_answers(scratch: Path) -> None:
    one, other = (run(scratch, SORT, Condition(2, method)) for method in ("naive", "tis"))
    assert one["steps"][0]["response_length"] == other["steps"][0]["response_length"]
    assert one["curve"][0] == other["curve"][0]


def test_fresh_groups_weigh_alike(scratch: Path) -> None:
    assert run(scratch, SORT, Condition(0, "naive"))["steps"][-1]["ess"] == pytest.approx(1.0, abs=0.05)


def test_dropping_trains_on_groups_that_end_in_time_only_and_counts_the_others(scratch: Path) -> None:
    waiting, dropping = (run(scratch, SLOW, Condition(1, "tis", policy)) for policy in ("wait", "drop"))
    assert waiting["dropped_groups"] == 0
    assert dropping["dropped_groups"] > 0
    assert dropping["started_groups"] > waiting["started_groups"]
    # At eta 1 a group is late from its longest answer's sixth token on, and has two answers.
    assert dropping["dropped_response_length"] >= 3


def test_results_are_kept_and_a_finished_run_is_not_run_again(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts.benches import staleness

    results = scratch / "results.jsonl"
    ran = list[str]()

    def one(job: Any, place: Path, extra: Any) -> dict[str, Any]:
        ran.append(job[1].name)
        return {"final": 0.5 + 0.1 * job[2], "curve": [], "steps": [], "cpu_s": 0.0}

    monkeypatch.setattr(staleness, "_one", one)
    monkeypatch.setattr(staleness, "_pool", InThisProcess)
    arguments = ["--results", str(results), "--seeds", "2", "--etas", "0,4", "--methods", "naive,tis"]
    found = main(arguments)
    assert sorted(ran) == sorted(["eta0_naive", "eta0_tis", "eta4_naive", "eta4_tis"] * 2)
    assert found["eta4_tis_over_eta0"] == 1.0
    with results.open("a") as file:
        file.write('{"cut')
    ran.clear()
    assert main(arguments) == found
    assert ran == []
    assert "cut off" in capsys.readouterr().err
    main([*arguments, "--set", "actor.lr=1.0e-3"])
    assert len(ran) == 8, "other settings are other runs"


class InThisProcess:
    """Runs what is submitted at once."""

    def __init__(self, jobs: int) -> None:
        del jobs

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def submit(self, function: Any, *arguments: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


def test_figures_are_of_one_task() -> None:
    lines = [
        {"task": task, "condition": condition, "seed": seed, "final": final}
        for task, final in (("sort", 0.8), ("slow", 0.1))
        for condition in ("eta0_naive", "eta4_tis")
        for seed in (0, 1)
    ]
    found = figures(lines, "sort")
    assert found["eta0_naive_score"] == 0.8
    assert found["eta4_tis_over_eta0_interval"] == [1.0, 1.0]
    assert json.loads(json.dumps(found)) == found


def test_a_condition_of_other_settings_has_another_key() -> None:
    from scripts.benches.staleness_cases.conditions import fingerprint

    base = fingerprint(SORT, Condition(4, "tis"), ())
    assert base != fingerprint(dataclasses.replace(SORT, overrides=()), Condition(4, "tis"), ())
    assert base != fingerprint(SORT, Condition(4, "naive"), ())
    assert base != fingerprint(SORT, Condition(4, "tis"), ("actor.lr=1",))
