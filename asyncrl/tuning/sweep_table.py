"""What the variants of a sweep came to: quality against throughput, mean and spread over the seeds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from asyncrl.report.lines import read, surviving
from asyncrl.tuning import measured
from asyncrl.tuning.variant_run import SUMMARY
from asyncrl.tuning.variants import Variant


@dataclass(frozen=True)
class Result:
    """One finished variant. None: it was not measured.

    Attributes:
        held_out: mean held-out reward after the last step.
        tokens_per_s: trained tokens, prompts included, over the seconds of the steps.
        stall_share: share of them in which the trainer waits for groups.
        lag_mean: of the groups trained on, in versions.
        stale_share: groups that left for being stale, of all that left so or were trained on.
        step_s: mean seconds of a step.
    """

    held_out: float | None
    tokens_per_s: float
    stall_share: float
    lag_mean: float
    stale_share: float
    step_s: float


@dataclass(frozen=True)
class Figures:
    """One choice over its seeds.

    Attributes:
        held_out_spread: standard deviation between seeds; None with fewer than two.
    """

    label: str
    seeds: int
    held_out: float | None
    held_out_spread: float | None
    tokens_per_s: float
    stall_share: float
    lag_mean: float
    stale_share: float
    step_s: float

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def result_of(directory: Path) -> Result:
    """What a run that has finished left, without its first step if there are more. Raises ValueError: it has none."""
    summary = json.loads((directory / SUMMARY).read_text())
    steps = [line for line in surviving(read(directory)) if line.is_training and "timing_s/step" in line.values]
    if not steps:
        raise ValueError(f"{directory}/metrics.jsonl has no training step, although the run finished.")
    # The first step has what happens once: kernels are compiled, and the window fills.
    steps = steps[1:] or steps
    return Result(
        held_out=summary["heldout_after"],
        tokens_per_s=measured.tokens_per_s(steps),
        stall_share=measured.stall_share(steps),
        lag_mean=measured.lag_mean(steps),
        stale_share=measured.stale_share(summary),
        step_s=measured.step_s(steps),
    )


def tabulate(results: Mapping[Variant, Result]) -> list[Figures]:
    """One row for each choice; the best held-out reward first, rows without one last."""
    by_label: dict[str, list[Result]] = {}
    for variant, result in results.items():
        by_label.setdefault(variant.label, []).append(result)
    rows = [_figures(label, some) for label, some in by_label.items()]
    return sorted(rows, key=lambda row: -row.held_out if row.held_out is not None else float("inf"))


def _figures(label: str, results: Sequence[Result]) -> Figures:
    scores = [result.held_out for result in results if result.held_out is not None]
    return Figures(
        label=label,
        seeds=len(results),
        held_out=fmean(scores) if scores else None,
        held_out_spread=stdev(scores) if len(scores) > 1 else None,
        tokens_per_s=fmean(result.tokens_per_s for result in results),
        stall_share=fmean(result.stall_share for result in results),
        lag_mean=fmean(result.lag_mean for result in results),
        stale_share=fmean(result.stale_share for result in results),
        step_s=fmean(result.step_s for result in results),
    )
