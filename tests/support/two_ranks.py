"""Start a module as several ranks of one process group, and read what each of them found."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def run_ranks(module: str, world: int, *arguments: str, timeout_s: float = 120.0) -> list[dict]:
    """Run `python -m module ARGUMENTS` as `world` ranks; the JSON object that each one's last line is."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(world)
    ]
    try:
        finished = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, finished, strict=True):
        assert process.returncode == 0, f"{out}\n{err}"
    return [json.loads(out.splitlines()[-1]) for out, _ in finished]
