"""`python -m tests.support.killed_publish`: kill a trainer at every line of a publish, and see if the run goes on.

A parent brings a run to version 1.2 with a server that is behind, so that version 1.3 brings delta, anchor, merged
delta and a sweep. For every line of weightsync that runs meanwhile it takes the run back, forks a trainer that dies by
SIGKILL when it comes to that line, and forks another process that resumes on a new branch and checks everything.
"""

import argparse
import gc
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from tests.support.killed_scene import Scene

WEIGHTSYNC = str(Path(__file__).parents[2] / "weightsync") + os.sep

Line = tuple[str, int]
"""(module's path under weightsync, line)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found as JSON; 1 if a death left something wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="a folder for everything")
    parser.add_argument("--redis", help="URL of a private Redis for log and parts; else both are folders")
    parser.add_argument("--every", type=int, default=1, help="try only every so manieth line")
    parser.add_argument("--first", type=int, default=0, help="the first one to try")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    scene = Scene(options.root, options.redis)
    scene.begin()
    start = scene.save()
    gc.freeze()  # a collection in a child would copy the parent's pages
    dry = _forked(lambda: _lines_of(scene.publish))["answer"]
    if not isinstance(dry, list):
        raise RuntimeError(f"the publish fails also when nobody dies: {dry}")
    lines = [(file, line) for file, line in dry]
    chosen, wrong, killed = lines[options.first :: options.every], {}, 0
    for line in chosen:
        scene.restore(start)
        died = _forked(lambda line=line: _dies_at(line, scene.publish))["signal"] == signal.SIGKILL
        killed += died
        found = _forked(scene.resume_and_check)
        if found["answer"] != "all is well":
            wrong[f"{line[0]}:{line[1]}"] = found
    print(json.dumps({"lines": len(lines), "tried": len(chosen), "killed": killed, "wrong": wrong}))
    return 1 if wrong else 0


def _forked(call: Callable[[], Any]) -> dict[str, Any]:
    """What `call` returns (plain values) in a process of its own, the error's text, or the signal that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = call()
        except BaseException:
            answer = traceback.format_exc()
        with os.fdopen(writer, "w") as stream:
            json.dump(answer, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    return {"answer": json.loads(text) if text else None, "signal": os.WTERMSIG(status) if status else 0}


def _lines_of(call: Callable[[], None]) -> list[Line]:
    """Every line of weightsync that runs, in the order of their first time."""
    seen: dict[Line, None] = {}
    _traced(call, lambda line: seen.setdefault(line, None))
    return list(seen)


def _dies_at(line: Line, call: Callable[[], None]) -> None:
    wanted = tuple(line)
    _traced(call, lambda here: os.kill(os.getpid(), signal.SIGKILL) if here == wanted else None)


def _traced(call: Callable[[], None], at: Callable[[Line], object]) -> None:
    def enters(frame: FrameType, event: str, argument: object) -> Any:  # a trace function, as sys asks for it
        file = frame.f_code.co_filename
        return runs if file.startswith(WEIGHTSYNC) else None

    def runs(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            at((frame.f_code.co_filename[len(WEIGHTSYNC) :], frame.f_lineno))
        return runs

    threading.settrace(enters)
    sys.settrace(enters)
    try:
        call()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]  # as its documentation says


if __name__ == "__main__":
    sys.exit(main())
