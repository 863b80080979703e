"""docs/staleness-study*.md and their plots, from the results alone: no number in them was typed."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from scripts.benches.staleness_cases.conditions import METHODS
from scripts.benches.staleness_cases.statistics import FALLEN, SMOOTHED, foretold, paired_ratio

Results = Sequence[Mapping[str, Any]]
THRESHOLDS = (0.9, 0.7, 0.5, 0.3)
PAGES = {"staleness-study.md": ("sort",), "staleness-study-full.md": ("hard", "slow")}
"""Tasks by page: those of the default study, and those of --full."""


def write_report(results: Results, docs: Path) -> None:
    """Write the pages of which there are results, and a plot of each task beside them."""
    mpl.use("Agg")
    for page, tasks in PAGES.items():
        parts = [part for name in tasks for part in _section(results, name, docs)]
        if parts:
            (docs / page).write_text("\n".join([_head(), *parts]), encoding="utf-8")


def _section(results: Results, name: str, docs: Path) -> list[str]:
    """What there is about a task."""
    of_task = [result for result in results if result["task"] == name]
    if not of_task:
        return []
    _plot(of_task, docs / f"staleness-study-{name}.svg", name)
    parts = [f"## {_TITLES[name]}\n", _table(of_task), f"![{name}](staleness-study-{name}.svg)\n"]
    if any(result["policy"] == "drop" for result in of_task):
        parts.append(_dropping(of_task))
    if any(result["eta"] for result in of_task):
        parts.append(_foretelling(of_task))
    return parts


_TITLES = {
    "sort": "The quickstart's task, a learning rate that decays",
    "hard": "A learning rate that does not decay",
    "slow": "Fast answers are wrong, late ones are dropped",
}


def _head() -> str:
    return """# What staleness costs: a study

Made by `scripts/bench staleness [--full]` and `scripts/bench staleness --report`; no number in the tables was typed.
Every run trains the quickstart's 0.1 M parameter model to sort digits: 16 groups of 8 answers a step, 120 steps, each
on groups that were sampled **exactly eta versions earlier** (the first eta steps: by version 0). Sampler and trainer
take turns in one process, so that the lag does not depend on the machine. Engine, estimator, corrections, loss and
optimizer are the product's.

*score* is the mean held-out reward after the last step: 256 prompts, 16 sampled answers each. *over eta 0* is its ratio
to eta 0 without a correction, means over the same seeds, with a 95 % interval (paired bootstrap over seeds; with three
seeds it is hardly more than their range). An interval that holds 1 says that this study cannot tell the two apart, not
that they are equal. *naive* trains as if the groups were fresh.

What it does not show: seconds (with real clusters staleness buys time), models of another size, answers of thousands
of tokens.
"""


def _cells(results: Results) -> dict[tuple[int, str, str], dict[int, Mapping[str, Any]]]:
    """(eta, method, policy) -> seed -> result."""
    cells: dict[tuple[int, str, str], dict[int, Mapping[str, Any]]] = {}
    for result in results:
        cells.setdefault((result["eta"], result["method"], result["policy"]), {})[result["seed"]] = result
    order = {method: index for index, method in enumerate(METHODS)}
    return dict(sorted(cells.items(), key=lambda item: (order[item[0][1]], item[0][2] == "drop", item[0][0])))


def _finals(cell: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    return {seed: result["final"] for seed, result in cell.items()}


def _fresh(results: Results) -> dict[int, float]:
    """Final scores at eta 0 by seed: without correction where that was run."""
    cells = _cells(results)
    names = [(0, method, "wait") for method in METHODS if (0, method, "wait") in cells]
    return _finals(cells[names[0]]) if names else {}


def _table(results: Results) -> str:
    fresh = _fresh(results)
    lines = [
        "| eta | method | policy | seeds | score | over eta 0 | smallest | ESS, lowest tenth |",
        "| --- " * 8 + "|",
    ]
    for (eta, method, policy), cell in _cells(results).items():
        finals = _finals(cell)
        ratio = paired_ratio(finals, fresh)
        spread = f"{statistics.fmean(finals.values()):.3f}"
        ess = sorted(line["ess"] for result in cell.values() for line in result["steps"] if "ess" in line)
        low = f"{ess[len(ess) // 10]:.2f}" if ess else "-"
        lines.append(
            f"| {eta} | {method} | {policy} | {len(finals)} | {spread} | {ratio or '-'} | {min(finals.values()):.3f} "
            f"| {low} |"
        )
    return "\n".join(lines) + "\n"


def _dropping(results: Results) -> str:
    lines = [
        "What dropping does: groups that were dropped, and tokens an answer of those dropped and those trained on.\n",
        "| eta | groups dropped | dropped answers | trained answers, drop | trained answers, wait |",
        "| --- " * 5 + "|",
    ]
    cells = _cells(results)
    for (eta, method, policy), cell in cells.items():
        waited = cells.get((eta, method, "wait"))
        if policy != "drop" or waited is None:
            continue
        started = sum(result["started_groups"] for result in cell.values())
        share = sum(result["dropped_groups"] for result in cell.values()) / started
        dropped = statistics.fmean(result["dropped_response_length"] for result in cell.values())
        trained = [_length(some) for some in (cell, waited)]
        lines.append(f"| {eta} | {share:.0%} | {dropped:.1f} | {trained[0]:.1f} | {trained[1]:.1f} |")
    return "\n".join(lines) + "\n\n" + _by_length(cells)


def _by_length(cells: Mapping[tuple[int, str, str], Mapping[int, Mapping[str, Any]]]) -> str:
    """Scores by how long the right answer is: what was dropped is what was not learned."""
    lengths = sorted({length for cell in cells.values() for result in cell.values() for length in result["by_length"]})
    lines = ["Scores by digits of the prompt.\n", "| eta | method | policy | " + " | ".join(lengths) + " |"]
    lines.append("| --- " * (3 + len(lengths)) + "|")
    for (eta, method, policy), cell in cells.items():
        means = [statistics.fmean(result["by_length"][length] for result in cell.values()) for length in lengths]
        lines.append(f"| {eta} | {method} | {policy} | " + " | ".join(f"{mean:.2f}" for mean in means) + " |")
    return "\n".join(lines) + "\n"


def _length(cell: Mapping[int, Mapping[str, Any]]) -> float:
    lengths = [line["response_length"] for r in cell.values() for line in r["steps"] if "response_length" in line]
    return statistics.fmean(lengths) if lengths else 0.0


def _foretelling(results: Results) -> str:
    lines = [
        f"Does ESS foretell a collapse (a held-out score below {FALLEN:.0%} of the best before, looked for every 10 "
        f"versions)? The alarm is a mean ESS of {SMOOTHED} steps below the threshold.\n",
        "| ESS below | runs that collapsed | warned before | versions ahead: median (range) | sound runs, alarmed |",
        "| --- " * 5 + "|",
    ]
    for threshold in THRESHOLDS:
        found = foretold(results, threshold)
        ahead = (
            f"{statistics.median(found.ahead):.0f} ({min(found.ahead)} to {max(found.ahead)})" if found.ahead else "-"
        )
        lines.append(
            f"| {threshold} | {found.collapsed} | {found.warned} | {ahead} | {found.false_alarms} of {found.sound} |"
        )
    return "\n".join(lines) + "\n"


def _plot(results: Results, path: Path, name: str) -> None:
    """Final score against eta, one line a method; each seed a dot."""
    from matplotlib import pyplot

    mpl.rcParams["svg.hashsalt"] = name  # the same results, the same file
    figure, axes = pyplot.subplots(figsize=(7, 4))
    cells = _cells(results)
    etas = sorted({eta for eta, _, _ in cells})
    for number, (method, policy) in enumerate(dict.fromkeys((method, policy) for _, method, policy in cells)):
        mine = [(eta, _finals(cells[eta, method, policy])) for eta in etas if (eta, method, policy) in cells]
        places = [etas.index(eta) for eta, _ in mine]
        label = method if policy == "wait" else f"{method}, {policy}"
        color = f"C{number}"
        axes.plot(places, [statistics.fmean(f.values()) for _, f in mine], marker="o", label=label, color=color)
        for place, (_, finals) in zip(places, mine, strict=True):
            axes.scatter([place] * len(finals), list(finals.values()), s=8, alpha=0.4, color=color)
    axes.set_xticks(range(len(etas)), [str(eta) for eta in etas])
    axes.set_xlabel("eta, versions between sampling and training")
    axes.set_ylabel("held-out reward after the last step")
    axes.set_ylim(0, 1)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
