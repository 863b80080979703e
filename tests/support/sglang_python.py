"""SGLang's interpreter for tests: where it is, and a warm one in its place that starts servers at once."""

import atexit
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from asyncrl.inference import reaper

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "ASYNCRL_SGLANG_PYTHON"
"""Environment variable: interpreter of an environment with SGLang; without it, .venv-sglang of `scripts/setup`."""

START_S = 300.0


def sglang_python() -> Path | None:
    """The interpreter, None if there is none."""
    path = Path(os.environ.get(VARIABLE) or ROOT / ".venv-sglang" / "bin" / "python")
    return path if path.exists() else None


def skip_without_sglang(kind: str = "sglang") -> None:
    """Skips the test, saying why, if it is SGLang's turn and there is none."""
    if kind == "sglang" and sglang_python() is None:
        pytest.skip(
            f"the real SGLang is not tested: there is no .venv-sglang (scripts/setup --sglang) and no {VARIABLE}"
        )


@cache
def warm_python() -> Path:
    """An executable that takes SGLang's command lines like its interpreter; the first call takes a while."""
    python = sglang_python()
    assert python is not None, "skip_without_sglang comes first"
    # Not pytest's folder: a socket's path has room for 100 characters.
    directory = Path(tempfile.mkdtemp(prefix="warm-sglang-"))
    path, log = directory / "socket", directory / "log"
    switches = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            # It ends when this process does, however that ends, and its servers with it.
            [sys.executable, "-I", "-S", reaper.__file__, python, "-m", "tests.support.warm_sglang", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env={**os.environ, **switches},
            cwd=ROOT,
            start_new_session=True,  # a signal for all of the tests would end it before its servers
        )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", f"SGLang cannot be imported: {log.read_text()[-2000:]}"
    command = directory / "python"
    client = ROOT / "tests" / "support" / "warm_python.py"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {client} {path} "$@"\n')
    command.chmod(0o700)
    return command
