"""Run one benchmark and print one JSON line: its figures, the commit and the machine they come from."""

import importlib
import inspect
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path


def machine() -> str:
    """CPU model, cores and Python of this machine, in one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """Short hash of HEAD, with + when the tree differs from it; "unknown" outside a repository."""
    done = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(argv: list[str]) -> int:
    """Call `main` of scripts/benches/NAME.py, with the arguments if it takes any."""
    name, arguments = argv[0], argv[1:]
    # As an exception, so that whatever a benchmark started is ended by whoever started it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    bench = importlib.import_module(f"scripts.benches.{name}").main
    figures = bench(arguments) if inspect.signature(bench).parameters else bench()
    print(json.dumps({"bench": name, "figures": figures, "commit": commit(), "machine": machine()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
