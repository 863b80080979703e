"""The role rollout-worker as a real process, over servers that the test runs."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.run.connections import URL
from asyncrl.run.handover import write_config
from tests.support.inference_servers import ROOT, environment, wait_for

PROMPTS = tuple(str(digits) for digits in range(3210, 3260))


def worker_config(directory: Path, run: str, model_dir: Path, **sections: dict[str, Any]) -> Config:
    """A run of sorting digits, its prompts in `directory`; `sections` are those of the configuration."""
    rows = directory / "train.jsonl"
    lines = [
        {"prompt": f"sort {digits}", "data_source": "sort_digits", "ground_truth": "".join(sorted(digits))}
        for digits in PROMPTS
    ]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tree: dict[str, Any] = {
        "run": {"name": run, "dir": str(directory / "run")},
        "model": {"path": str(model_dir)},
        "data": {"train_files": [str(rows)], "max_prompt_tokens": 16},
        **sections,
    }
    return Config.model_validate_json(json.dumps(tree))


class WorkerProcess:
    """A started worker. `name` is the one in its reports."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self.name = f"worker-0.{process.pid}"

    def stop(self, number: signal.Signals, deadline_s: float = 60.0) -> int:
        """Send it a signal; its exit code, when it has ended by itself."""
        self._process.send_signal(number)
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running {deadline_s} s after {number.name}:\n{self.text()}") from None

    def until(self, what: str, happened: Callable[[], bool], deadline_s: float = 60.0) -> None:
        """Wait until `happened`; fail if the process ends first."""

        def look() -> bool:
            assert self._process.poll() is None, f"the worker ended before {what}:\n{self.text()}"
            return happened()

        wait_for(what, look, deadline_s)

    def text(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-4000:]


@contextmanager
def worker_process(config: Config, redis_url: str, log: Path) -> Iterator[WorkerProcess]:
    """A worker for the block, killed at its end if it still runs."""
    file = write_config(config, log.with_suffix(".json"))
    command = [sys.executable, "-m", "asyncrl.run", "rollout-worker", "--config", str(file)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env={**environment(), URL: redis_url}
        )
    try:
        yield WorkerProcess(process, log)
    finally:
        process.kill()
        process.wait()
