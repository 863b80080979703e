"""Read metrics.jsonl, and find the lines that the surviving branch of the run is made of."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

LAG = "training/off_policy/lag/"
REWARD = "critic/rewards/mean"


@dataclass(frozen=True)
class Line:
    """The metrics of one step.

    Attributes:
        step: training step; 0 is before the first.
        branch: the trainer's branch; a resume opens a higher one.
        time_s: seconds since the epoch, when it was written.
        values: name -> number.
    """

    step: int
    branch: int
    time_s: float
    values: Mapping[str, float]

    @property
    def is_training(self) -> bool:
        """Whether a step was trained, not only evaluated."""
        return REWARD in self.values or any(name.startswith(LAG) for name in self.values)


def read(run_dir: Path) -> list[Line]:
    """Every complete line of the run's metrics, in the order they were written; none if there is no file.

    A line that is no metrics line (a torn last one, or another writer's) is left out, and said so in the log.
    """
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return []
    lines = []
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                lines.append(_parsed(text))
            except (ValueError, KeyError, TypeError, AttributeError):
                log.warning("%s line %d is no line of metrics and is left out", path, number)
    return lines


def surviving(lines: Iterable[Line]) -> list[Line]:
    """One line a step, in order of steps: what the weights at the end of the run have behind them.

    A resumed trainer goes back to its checkpoint on a higher branch. From the first step that branch wrote, its lines
    count and those of lower branches do not, also where it has not repeated a step yet.
    """
    by_branch: dict[int, list[Line]] = {}
    for line in lines:
        by_branch.setdefault(line.branch, []).append(line)
    steps: dict[int, Line] = {}
    end: tuple[int, bool] | None = None  # first step of the branches above, and whether that step was trained there
    for branch in sorted(by_branch, reverse=True):
        own = _by_step(by_branch[branch])
        for step, line in own.items():
            if end is None or step < end[0]:
                steps[step] = line
            elif step == end[0] and not end[1]:
                # The branch above only evaluated at its fork: the step itself was trained here.
                steps[step] = _joined(line, steps[step])
        first = min(own)
        if end is None or first < end[0]:
            end = first, own[first].is_training
        elif first == end[0]:
            end = first, end[1] or own[first].is_training
    return [steps[step] for step in sorted(steps)]


def by_suffix(values: Mapping[str, float], prefix: str) -> Iterator[tuple[str, float]]:
    """What follows the prefix, and the number, of every name that begins with it."""
    for name, value in values.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), value


def _by_step(lines: Iterable[Line]) -> dict[int, Line]:
    """A branch's lines, several of one step joined (an evaluation writes its own)."""
    steps: dict[int, Line] = {}
    for line in lines:
        steps[line.step] = _joined(steps[line.step], line) if line.step in steps else line
    return steps


def _joined(first: Line, second: Line) -> Line:
    return Line(second.step, second.branch, second.time_s, {**first.values, **second.values})


def _parsed(text: bytes) -> Line:
    row = json.loads(text)
    step, branch, time_s = int(row.pop("step")), int(row.pop("branch")), float(row.pop("time_s"))
    return Line(step, branch, time_s, {name: float(value) for name, value in row.items()})
