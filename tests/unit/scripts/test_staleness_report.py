"""The page of the study says what the results say: ratios, dropped groups and forecasts, the same each time."""

from pathlib import Path
from typing import Any

from scripts.benches.staleness_cases.report import PAGES, write_report

DEFAULT, FULL = PAGES


def result(task: str, eta: int, method: str, policy: str, seed: int, final: float) -> dict[str, Any]:
    scores = [0.3, 0.8, final]
    return {
        "task": task,
        "eta": eta,
        "method": method,
        "policy": policy,
        "seed": seed,
        "final": final,
        "by_length": {"3": final, "7": 0.3 if policy == "drop" else final},
        "curve": [[10 * index, score] for index, score in enumerate(scores)],
        "steps": [{"ess": 1.0 if eta == 0 else 0.2, "response_length": 4.0 if policy == "drop" else 5.0}] * 20,
        "started_groups": 40,
        "dropped_groups": 10 if policy == "drop" else 0,
        "dropped_response_length": 7.0 if policy == "drop" else 0.0,
    }


RESULTS = [
    *(result("sort", 0, "naive", "wait", seed, 0.8) for seed in range(3)),
    *(result("sort", 8, "naive", "wait", seed, 0.2) for seed in range(3)),
    *(result("slow", 0, "tis", "wait", seed, 0.8) for seed in range(3)),
    *(result("slow", 1, "tis", policy, 0, 0.6) for policy in ("wait", "drop")),
]


def test_the_page_has_a_row_for_every_condition_and_a_plot_for_every_task(tmp_path: Path) -> None:
    write_report(RESULTS, tmp_path)
    page, full = ((tmp_path / name).read_text() for name in PAGES)
    assert "| 8 | naive | wait | 3 | 0.200 | 0.250 [0.250, 0.250] | 0.200 | 0.20 |" in page
    assert "| 1 | tis | drop | 1 | 0.600 | 0.750 [0.750, 0.750] | 0.600 | 0.20 |" in full
    assert {path.name for path in tmp_path.glob("*.svg")} == {"staleness-study-sort.svg", "staleness-study-slow.svg"}


def test_the_page_says_what_dropping_does_to_lengths_and_to_long_answers(tmp_path: Path) -> None:
    write_report(RESULTS, tmp_path)
    page = (tmp_path / FULL).read_text()
    assert "| 1 | 25% | 7.0 | 4.0 | 5.0 |" in page
    assert "| 1 | tis | drop | 0.60 | 0.30 |" in page
    assert "| 1 | tis | wait | 0.60 | 0.60 |" in page


def test_the_page_says_how_far_ahead_ess_warned(tmp_path: Path) -> None:
    write_report(RESULTS, tmp_path)
    assert "| 0.5 | 3 | 3 | 17 (17 to 17) | 0 of 0 |" in (tmp_path / DEFAULT).read_text()


def test_a_page_without_results_is_left_as_it_is(tmp_path: Path) -> None:
    write_report([one for one in RESULTS if one["task"] == "slow"], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {FULL, "staleness-study-slow.svg"}


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_report(RESULTS, tmp_path / name)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
