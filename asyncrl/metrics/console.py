"""What a person sees of a run while it goes on: a live view on a terminal, plain lines everywhere else.

It shows facts it is given and looks nothing up. Of a step's metrics it reads the names in STEP_NAMES and the held-out
scores; of a report, one source -> facts, these keys, all optional:

    waits_for, waits_s, why    what the source waits for, for how many seconds, and the reason (metrics.timing.waiting)
    not_admitted               why a worker may start no new prompt; a wait of its own
    tokens_per_s, version      what it generates or trains, and the label of its weights

The source `buffer` reports counts of groups by state. Other keys are shown as they are, apart from totals (`wait/...`).
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

HELD_OUT = re.compile(r"(val-core/(?P<source>.+)/reward/mean@\d+|val/test_score/(?P<old>.+))\Z")
STEP_NAMES: Mapping[str, str] = {
    "reward": "critic/rewards/mean",
    "lag max": "training/off_policy/lag/max",
    "lag mean": "training/off_policy/lag/mean",
    "trained tokens/s": "perf/tokens_per_s",
    "version": "weightsync/version",
    "bytes/version": "weightsync/num_bytes",
}
KNOWN_FACTS = ("waits_for", "waits_s", "why", "not_admitted", "tokens_per_s", "version")
FOR_THE_SUMMARY = ("ended_lengths", "speeds", "kv")  # facts that only make sense once they are added up
REPORTED = "at_ms"
SILENT_MS = 60_000.0  # reports come every few seconds; a process that was started again reports under a new name
WAIT_LINE_EVERY_S = 10.0  # plain lines about waits: often enough to explain a pause, seldom enough for a log
WAIT_WORTH_A_LINE_S = 5.0
LONG_WAIT_S = 60.0

Facts = Mapping[str, float | str]
T = TypeVar("T", str, float, float | str)


class RunView:
    """The progress of one command; a context manager."""

    def __init__(
        self,
        title: str,
        *,
        total_steps: int | None = None,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total_steps, self._clock = title, total_steps, clock
        self._console = console if console is not None else Console()
        self._live: Live | None = None
        self._start_s = clock()
        self._waits_told_s = self._start_s
        self._values: dict[str, float | str] = {}
        self._reports: dict[str, dict[str, float | str]] = {}
        self._not_admitted_s: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=4)
            self._live.start()
        else:
            self._say(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def step(self, values: Mapping[str, float | str]) -> None:
        """Take a line of metrics, with its `step`; names that it lacks keep their last value on the screen."""
        before = self._values
        self._values = {**before, **values}
        if values.get("branch") == before.get("branch") and "step" in before:
            # The numbers of an evaluation beside training come under the step of their version.
            self._values["step"] = max(_float(before["step"]), _float(values.get("step", 0)))
        if self._live is None:
            self._say(self._step_line(values))

    def update(self, reports: Mapping[str, Facts]) -> None:
        """Take what each side last reported; one that fell silent long before the others has ended."""
        newest_ms = max((_float(facts.get(REPORTED, 0)) for facts in reports.values()), default=0.0)
        self._reports = {
            _printable(source): {
                _printable(name): _printable(value) for name, value in facts.items() if name != REPORTED
            }
            for source, facts in reports.items()
            if newest_ms - _float(facts.get(REPORTED, newest_ms)) <= SILENT_MS
        }
        self._not_admitted_s = {
            source: self._not_admitted_s.get(source, self._clock())
            for source, facts in self._reports.items()
            if facts.get("not_admitted")
        }
        if self._live is None and self._clock() - self._waits_told_s >= WAIT_LINE_EVERY_S:
            waits = [(source, *self._wait_of(source)) for source in self._sides()]
            long = [
                f"{source}: {name}, {_duration(seconds)} so far{f': {why}' if why else ''}"
                for source, name, seconds, why in waits
                if name and seconds >= WAIT_WORTH_A_LINE_S
            ]
            if long:
                self._waits_told_s = self._clock()
                self._say("; ".join(long))

    def message(self, text: str) -> None:
        """Say something once, above the live view."""
        self._say(text)

    def render(self) -> RenderableType:
        """The live view as it is now."""
        facts = Table.grid(padding=(0, 2))
        for _ in range(4):
            facts.add_column(no_wrap=True)
        cells = [Text(f"{name} {value}") for name, value in self._facts()]
        for index in range(0, len(cells), 4):
            facts.add_row(*cells[index : index + 4])
        parts: list[RenderableType] = [self._progress(), facts]
        if buffer := self._reports.get("buffer"):
            parts.append(Text(f"buffer  {_listed(buffer)}"))
        if self._sides():
            parts.append(self._table_of_sides())
        return Panel(Group(*parts), title=Text(self._title), title_align="left")

    def _progress(self) -> RenderableType:
        step, elapsed = _float(self._values.get("step", 0)), _duration(self._clock() - self._start_s)
        if self._total_steps is None:
            return Text(f"{elapsed} since start")
        grid = Table.grid(padding=(0, 2))
        grid.add_row(
            Text(f"step {number(step)}/{self._total_steps}"),
            ProgressBar(total=self._total_steps, completed=step, width=30),
            Text(elapsed),
        )
        return grid

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Name and text of each number on the screen."""
        for name, metric in STEP_NAMES.items():
            if metric in self._values:
                yield name, _version(self._values[metric]) if name == "version" else number(self._values[metric])
        yield from self._held_out(self._values)
        rates = [facts["tokens_per_s"] for source, facts in self._reports.items() if _generates(source, facts)]
        if rates:
            yield "generated tokens/s", number(sum(map(_float, rates)))

    def _held_out(self, values: Mapping[str, float | str]) -> Iterator[tuple[str, str]]:
        for name, value in values.items():
            if (match := HELD_OUT.match(name)) is not None and match["source"] is not None:
                yield f"held-out {match['source']}", number(value)

    def _step_line(self, values: Mapping[str, float | str]) -> str:
        total = f"/{self._total_steps}" if self._total_steps is not None else ""
        texts = [f"step {number(values.get('step', 0))}{total}"]
        for name, metric in STEP_NAMES.items():
            if metric in values:
                texts.append(f"{name} {_version(values[metric]) if name == 'version' else number(values[metric])}")
        texts += [f"{name} {value}" for name, value in self._held_out(values)]
        return "  ".join(texts)

    def _sides(self) -> list[str]:
        return [source for source in sorted(self._reports) if source != "buffer"]

    def _table_of_sides(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("", "tokens/s", "version", "waits for", "since", "why"):
            table.add_column(name, overflow="ellipsis", no_wrap=name != "why")
        for source in self._sides():
            facts = self._reports[source]
            name, waited_s, why = self._wait_of(source)
            others = _listed({fact: value for fact, value in facts.items() if _is_worth_showing(fact, value)})
            table.add_row(
                Text(source),
                Text(number(facts["tokens_per_s"]) if "tokens_per_s" in facts else ""),
                Text(str(facts.get("version", ""))),
                Text(name, style="yellow" if waited_s >= LONG_WAIT_S else ""),
                Text(_duration(waited_s) if name else ""),
                Text(why or others),
            )
        return table

    def _wait_of(self, source: str) -> tuple[str, float, str]:
        """What a source waits for, for how many seconds, and why; "" if it does not wait."""
        facts = self._reports[source]
        if facts.get("waits_for"):
            return str(facts["waits_for"]), _float(facts.get("waits_s", 0)), str(facts.get("why", ""))
        if source in self._not_admitted_s:
            return f"admission ({facts['not_admitted']})", self._clock() - self._not_admitted_s[source], ""
        return "", 0.0, ""

    def _say(self, text: str) -> None:
        self._console.print(Text(_printable(text)), soft_wrap=True)


def number(value: float | str) -> str:
    """A number for people: whole ones whole, others with four digits, small ones never rounded to 0."""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _printable(value: T) -> T:
    """Text without what a terminal would obey: facts come from Redis, where others may write."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() else "?" for letter in value)
    return value


def _version(value: float | str) -> str:
    """`branch.number` of a packed version; a label stays one."""
    if isinstance(value, str):
        return value
    branch, low = divmod(int(value), 1 << 32)
    return f"{branch}.{low}" if branch else str(low)


def _generates(source: str, facts: Facts) -> bool:
    return "tokens_per_s" in facts and not source.startswith("trainer")


def _is_worth_showing(name: str, value: float | str) -> bool:
    """Whether a fact without a column of its own is shown: not totals of seconds, and not what is empty."""
    return name not in (*KNOWN_FACTS, *FOR_THE_SUMMARY) and not name.startswith("wait/") and value not in (0, "", "0")


def _listed(facts: Facts) -> str:
    return "  ".join(f"{name} {number(value)}" for name, value in facts.items())


def _float(value: float | str) -> float:
    """A fact as a number; Redis may hand it back as text."""
    try:
        return float(value)
    except ValueError:
        return 0.0


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )
