"""The picture of a run: reward and held-out score above, lag below, over steps; a PNG."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.report.lines import LAG, REWARD, Line, by_suffix, read, surviving
from asyncrl.report.summary import held_out

log = logging.getLogger(__name__)

NAME = "reward_and_lag.png"


def draw(run_dir: Path, *, lag_limit: int | None = None) -> Path | None:
    """Draw run_dir/reward_and_lag.png and return its path.

    None, with the reason in the log, when there is nothing to draw or matplotlib is not installed: a run is not spoilt
    by a missing picture.
    """
    lines = surviving(read(run_dir))
    if not lines:
        log.warning("%s has no metrics yet, so there is nothing to draw", run_dir)
        return None
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        log.warning("no picture of the run: %s. pip install 'asyncrl[trainer]' brings matplotlib.", error)
        return None
    # No pyplot: it would look for a display, and keep global state between runs.
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_rewards(above, lines)
    _draw_lag(below, lines, lag_limit)
    path = run_dir / NAME
    figure.savefig(path, dpi=120)
    return path


def _draw_rewards(axes: Any, lines: Sequence[Line]) -> None:  # Any: matplotlib brings no types
    trained = [line for line in lines if REWARD in line.values]
    axes.plot([line.step for line in trained], [line.values[REWARD] for line in trained], label="training reward")
    sources = sorted({source for line in lines for source in held_out(line.values)})
    for source in sources:
        scored = [(line.step, scores[source]) for line in lines if source in (scores := held_out(line.values))]
        axes.plot(*zip(*scored, strict=True), marker="o", linestyle="--", label=f"held-out {source}")
    axes.set_ylabel("reward")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="best")


def _draw_lag(axes: Any, lines: Sequence[Line], limit: int | None) -> None:  # Any: as above
    trained = [(line.step, _groups(line)) for line in lines if _groups(line)]
    steps = [step for step, _ in trained]
    if trained:
        bottom = [0.0] * len(trained)
        for lag in sorted({lag for _, groups in trained for lag in groups}):
            heights = [groups.get(lag, 0.0) for _, groups in trained]
            axes.bar(steps, heights, bottom=bottom, width=1.0, label=f"lag {lag}")
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.legend(loc="upper right", title=f"limit {limit}" if limit is not None else None)
    axes.set_xlabel("step")
    axes.set_ylabel("groups by lag (versions)")
    axes.grid(visible=True, alpha=0.3)


def _groups(line: Line) -> dict[int, float]:
    return {int(lag): count for lag, count in by_suffix(line.values, LAG) if lag.isdigit()}
