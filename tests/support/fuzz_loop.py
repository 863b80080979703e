"""The loop of a fuzz run: draw, damage, decode, judge; count the outcomes and make every fault's input small."""

import random
import re
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.fuzz_targets import Target

NUM_SEEDS = 64
_WATCH_EVERY = 16
"""Memory is measured for one input in so many: tracing costs several times what decoding does."""
_SLACK_BYTES, _BYTES_PER_BYTE = 8 << 20, 256
"""What decoding may take: a constant, and for every byte an object of Python (an empty map is one byte and 64)."""
_SLOW_S = 2.0
_RUNS_CODE = re.compile(r"exec|compile|import|open|os\.|subprocess|socket|ctypes|pickle|marshal|shutil|tempfile")


@dataclass
class Report:
    """What a run found. outcomes: "ok" or the error with its numbers and names left out -> how often."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, bytes] = field(default_factory=dict)
    """What went wrong -> the first input that showed it, made small."""
    seconds: float = 0.0
    most_bytes: int = 0


class _Watch:
    """Hears of everything that the interpreter is asked to run or open while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.heard: list[str] = []
        sys.addaudithook(self._hear)  # for ever: Python has no way to remove one

    def _hear(self, event: str, args: tuple[object, ...]) -> None:
        if self.on and _RUNS_CODE.match(event):
            self.heard.append(event)

    @contextmanager
    def listening(self) -> Iterator[None]:
        self.on, self.heard = True, []
        try:
            yield
        finally:
            self.on = False


_watch: list[_Watch] = []


def judge(target: Target, blob: bytes, *, memory: bool = False) -> tuple[str, str | None, int]:
    """Decode once. (outcome, what is wrong with it or None, peak bytes if `memory`)."""
    if not _watch:
        _watch.append(_Watch())
    watch, fault, found, outcome = _watch[0], None, None, "ok"
    if memory:
        tracemalloc.start()
    began = time.thread_time()  # of the CPU: another process's turn is no fault of the decoder
    with watch.listening():
        try:
            found = target.decode(blob)
        except target.refusals as error:
            message = str(error)
            outcome = f"{type(error).__name__}: {_shape(message)}"
            if len(message) > target.longest_message:
                fault = f"a message of more than {target.longest_message} characters"
        except Exception as error:  # the fuzzer's subject: any other error is a finding
            outcome = fault = f"{type(error).__name__}: {_shape(str(error))}"
    seconds, peak = time.thread_time() - began, 0
    if memory:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > _SLACK_BYTES + _BYTES_PER_BYTE * len(blob):
            fault = "more memory than its bytes account for"
    if watch.heard:
        fault = f"decoding asked the interpreter for {sorted(set(watch.heard))}"
    if seconds > _SLOW_S:
        fault = "decoding took seconds"
    if found is not None and fault is None:
        fault = _unsound(target, found)
    return outcome, fault, peak


def _unsound(target: Target, found: object) -> str | None:
    try:
        target.check(found)
    except Exception as error:  # as above: whatever the check of an accepted value raises is a finding
        return f"accepted, but {type(error).__name__}: {_shape(str(error))}"
    return None


def _shape(message: str) -> str:
    """A message without what varies, so that equal findings count as one."""
    message = re.sub(r"b?'[^']*'|b?\"[^\"]*\"|\[.*\]|\{.*\}", "'..'", message[:400], flags=re.DOTALL)
    return re.sub(r"-?\d[\d.e+]*|\bnan\b|-?\binf\b", "N", message)[:120]


def fuzz(target: Target, *, seed: int, inputs: int, deadline_s: float = float("inf")) -> Report:
    """Damage valid inputs `inputs` times, or until the deadline; every valid input must be accepted first."""
    draw, report, began = random.Random(seed), Report(), time.perf_counter()
    valid = [target.valid(draw) for _ in range(NUM_SEEDS)]
    for blob in valid:
        target.decode(blob)  # what is imported or compiled at the first call is no finding
        outcome, fault, _ = judge(target, blob)
        assert outcome == "ok", f"a valid input is refused: {outcome}"
        assert fault is None, fault
    while report.inputs < inputs and time.perf_counter() - began < deadline_s:
        if draw.random() < 0.02:
            valid[draw.randrange(NUM_SEEDS)] = target.valid(draw)
        blob = target.damage(draw.choice(valid), draw, valid)
        report.inputs += 1
        outcome, fault, peak = judge(target, blob, memory=report.inputs % _WATCH_EVERY == 0)
        report.outcomes[outcome] += 1
        report.most_bytes = max(report.most_bytes, peak)
        if fault is not None and fault not in report.faults:
            report.faults[fault] = smaller(target, blob, fault)
    report.seconds = time.perf_counter() - began
    return report


def smaller(target: Target, blob: bytes, fault: str, tries: int = 2000) -> bytes:
    """The shortest input found by leaving bytes out that still shows `fault`."""
    memory, size = fault.startswith("more memory"), len(blob) // 2
    while size and tries > 0:
        at = 0
        while at < len(blob) and tries > 0:
            tries -= 1
            shorter = blob[:at] + blob[at + size :]
            if judge(target, shorter, memory=memory)[1] == fault:
                blob = shorter
            else:
                at += size
        size //= 2
    return blob
