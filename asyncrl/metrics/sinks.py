"""Where metrics go: metrics.jsonl always, TensorBoard and Weights & Biases on request.

Held to tests/contract/test_sinks.py: every metric arrives once, and a failing sink stops no training. To add one: a
class here, a line in OPENERS, its name in MetricsConfig.
"""

import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from asyncrl.config import MetricsConfig
from asyncrl.errors import PreflightError

log = logging.getLogger(__name__)

OWN_FIELDS = ("step", "branch", "time_s")
BLOCK = 1 << 16
MAX_PENDING = 10_000  # lines of a full disk that are kept for later: days of training


class Sink(Protocol):
    """Takes the metrics of a step. JsonlSink, TensorboardSink, WandbSink; held to tests/contract/test_sinks.py.

    After a resume the same step comes again under a higher branch; the higher one is the run's.
    """

    def write(self, step: int, branch: int, values: Mapping[str, float]) -> None:
        """Take all metrics of one step, in one call."""

    def close(self) -> None:
        """Finish what was begun; nothing is written afterwards."""


class JsonlSink:
    """metrics.jsonl: one flat JSON object a line with step, branch, time_s and the metrics.

    A line is handed to the system at once and whole, so a killed run loses none that was written; it reaches the disk
    when the system pleases, and at close. NaN and infinity are the strings "nan", "inf" and "-inf": JSON has no such
    numbers, and strict readers would reject the file.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._pending: list[bytes] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        # The last line of a killed run may be torn; the next one would be appended to it and both be lost.
        os.ftruncate(self._file, _end_of_last_line(self._file))

    def write(self, step: int, branch: int, values: Mapping[str, float]) -> None:
        """Append one line, after those that a full disk refused before."""
        row: dict[str, int | float | str] = {"step": step, "branch": branch, "time_s": round(self._clock(), 3)}
        taken = sorted(set(values) & set(OWN_FIELDS))
        assert not taken, f"metrics may not be called {taken}"
        row |= {name: _number(value) for name, value in values.items()}
        self._pending.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        del self._pending[:-MAX_PENDING]
        self._flush()

    def close(self) -> None:
        """Write what is left, and wait for the disk."""
        try:
            self._flush()
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def _flush(self) -> None:
        while self._pending:
            line = self._pending[0]
            written = 0
            try:
                while written < len(line):
                    written += os.write(self._file, line[written:])
            except OSError:
                if written:
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise
            del self._pending[0]


class TensorboardSink:
    """Event files for TensorBoard, written without torch or TensorFlow."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._open: Callable[[], Any] = lambda: EventFileWriter(str(directory), flush_secs=10)
        self._writer: Any = None  # Any: tensorboard brings no types
        self._branch = -1

    def write(self, step: int, branch: int, values: Mapping[str, float]) -> None:
        """Add one event. The first of a branch hides what an older branch wrote from its step on."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        now = time.time()
        if branch != self._branch:
            self.close()
            self._writer, self._branch = self._open(), branch
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=now, step=step, session_log=start))
        points = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        points.append(Summary.Value(tag="training/branch", simple_value=branch))
        self._writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=points)))

    def close(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbSink:
    """Weights & Biases. WANDB_MODE=offline needs no network or account; a resumed run goes on under its old id.

    Only the resolved configuration is sent, whose secrets are masked: not the command line, not the environment, not
    the output, not the code.
    """

    def __init__(self, run_dir: Path, project: str, run_name: str, resolved_config: dict[str, Any]) -> None:
        import wandb

        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=30.0,
            login_timeout=10.0,
            quiet=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=project,
            name=run_name,
            id=_run_id(run_dir / "wandb_id"),
            resume="allow",
            dir=str(run_dir),
            config=resolved_config,
            settings=settings,
        )
        # wandb drops points whose own step goes back, as it does after a resume; so ours is the x axis instead.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, branch: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log({"step": step, "branch": branch, **{name: float(value) for name, value in values.items()}})

    def close(self) -> None:
        """Finish the run's upload, or its offline file."""
        self._run.finish()


class Guarded:
    """A sink whose failure is reported once and stops no training.

    After a failure an optional sink is left alone for good; one that is `kept` (metrics.jsonl, which the summary reads)
    is tried again with every step.
    """

    def __init__(self, name: str, sink: Sink, *, kept: bool = False) -> None:
        self.name, self._sink, self._kept = name, sink, kept
        self._failed = False

    def write(self, step: int, branch: int, values: Mapping[str, float]) -> None:
        """Pass a step on; never raises."""
        if self._failed and not self._kept:
            return
        self._try("write", lambda: self._sink.write(step, branch, values))

    def close(self) -> None:
        """Close the sink, also one that failed before; never raises."""
        self._try("close", self._sink.close)

    def _try(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever a third party's writer raises, training goes on
            if not self._failed:
                then = "its steps are kept in memory and tried again" if self._kept else "it is left out from here on"
                log.warning(
                    "metrics sink %s failed at %s (%s: %s); %s", self.name, what, type(error).__name__, error, then
                )
            self._failed = True
        else:
            if self._failed and self._kept:
                log.warning("metrics sink %s works again; nothing was lost", self.name)
                self._failed = False


@dataclass(frozen=True)
class Destination:
    """What an optional sink is made for."""

    config: MetricsConfig
    run_dir: Path
    run_name: str
    resolved_config: dict[str, Any]  # Any: JSON has no narrower name


def _open_tensorboard(to: Destination) -> Sink:
    return TensorboardSink(to.run_dir / "tensorboard")


def _open_wandb(to: Destination) -> Sink:
    return WandbSink(to.run_dir, to.config.wandb_project, to.run_name, to.resolved_config)


OPENERS: Mapping[str, Callable[[Destination], Sink]] = MappingProxyType(
    {"tensorboard": _open_tensorboard, "wandb": _open_wandb}
)
"""Names in metrics.sinks -> how to open each."""


def open_sinks(config: MetricsConfig, run_dir: Path, run_name: str, resolved_config: dict[str, Any]) -> list[Sink]:
    """Open metrics.jsonl and the configured sinks; of those, one that cannot be opened is reported and left out.

    Raises:
        PreflightError: metrics.jsonl itself cannot be opened; nothing of the run could be shown afterwards.
    """
    path = run_dir / "metrics.jsonl"
    try:
        sinks: list[Sink] = [Guarded("metrics.jsonl", JsonlSink(path), kept=True)]
    except OSError as error:
        raise PreflightError(
            f"{path} cannot be written ({error.strerror}), and the run's summary is made from it. "
            "Make run.dir writable, or choose another."
        ) from error
    destination = Destination(config, run_dir, run_name, resolved_config)
    for name in dict.fromkeys(config.sinks):
        try:
            sinks.append(Guarded(name, OPENERS[name](destination)))
        except Exception as error:  # a missing package, no account, no network: training goes on without it
            log.warning("metrics sink %s is left out (%s: %s)", name, type(error).__name__, error)
    return sinks


def _number(value: float) -> int | float | str:
    """A number as JSON can hold it."""
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


def _end_of_last_line(file: int) -> int:
    """Offset behind the last newline of a file."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - BLOCK)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _run_id(path: Path) -> str:
    """The run's id at Weights & Biases, made at its first start."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        run_id = secrets.token_hex(8)
        path.write_text(run_id + "\n")
        return run_id
