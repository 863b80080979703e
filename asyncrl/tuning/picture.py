"""The picture of a table: speed, stall, lag and stale share over the limit, a line for each other choice."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.tuning.search import Row

NAME = "tune.png"
SHOWN: Mapping[str, str] = {
    "tokens_per_s": "tokens/s",
    "stall_share": "trainer waits (share)",
    "lag_mean": "mean lag (versions)",
    "stale_share": "stale groups (share)",
}


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Draw it as a PNG; False when matplotlib is not installed: the table says the same."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lines[_label(row)].append(row)
    # No pyplot: it would look for a display, and keep global state between pictures.
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(2, 2, sharex=True)  # Any: matplotlib brings no types
    for axes, (name, text) in zip(panels.flat, SHOWN.items(), strict=True):
        for label, of_line in lines.items():
            own = sorted(of_line, key=lambda row: row.setting.limit)
            axes.plot(
                [row.setting.limit for row in own],
                [getattr(row.prediction, name) for row in own],
                marker="o",
                linestyle="--" if own[0].setting.policy == "drop" else "-",
                label=label,
            )
        axes.set_ylabel(text)
        axes.grid(visible=True, alpha=0.3)
    for axes in panels[1]:
        axes.set_xlabel("staleness.limit")
    if len(lines) <= 12:
        panels[0][0].legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)
    return True


def _label(row: Row) -> str:
    setting = row.setting
    return f"{setting.policy}, {setting.steps_per_version} steps/version, {setting.servers}+{setting.ranks}"
