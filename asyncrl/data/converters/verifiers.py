"""The data set of an environment of verifiers, read by the Python that has it, for `rollout.environment: verifiers`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from asyncrl.data import verifiers_bridge
from asyncrl.data.converters.base import ConvertedRow, Converter, Settings, Unusable
from asyncrl.data.values import Json
from asyncrl.errors import DataError

ROW_KEY = "verifiers_row"
"""Key of a row's extra_info: the row of the environment's data set, as JSON in a string."""
DATA_SOURCE = "verifiers"
SPLITS = {"train": "train", "eval": "test"}
"""verifiers' name -> ours."""


def convert(path: Path | None, settings: Settings) -> Iterator[ConvertedRow | Unusable]:
    """A row for each of the training data, and of the evaluation data if the environment has any.

    Raises:
        DataError: the environment cannot be loaded.
    """
    environment = settings.get("environment")
    if environment is None:
        raise DataError("--set environment=ID is missing: name it as for verifiers.load_environment.")
    try:
        args, limit = json.loads(settings.get("args", "{}")), int(settings.get("limit", "-1"))
    except ValueError as error:
        raise DataError(f"--set args= must be JSON, and limit a whole number: {error}.") from None
    with _bridge(settings.get("python", sys.executable)) as ask:
        ask.send({"op": "load", "environment": environment, "args": args, "max_turns": 1})
        ask.reply()
        for split, ours in SPLITS.items():
            ask.send({"op": "rows", "split": split, "limit": limit})
            number = 0
            while (reply := ask.reply())["op"] == "row":
                yield ConvertedRow(ours, f"row {number} of {environment}, {split}", _values(reply, ours, number))
                number += 1


def _values(reply: Mapping[str, Json], split: str, index: int) -> dict[str, Json]:
    values: dict[str, Json] = {
        "data_source": DATA_SOURCE,
        "prompt": reply["messages"],
        "ability": "agent",
        "extra_info": {"split": split, "index": index, ROW_KEY: json.dumps(reply["row"])},
    }
    # Text: columns would give every tool the keys of all.
    return {**values, "tools": json.dumps(reply["tools"])} if reply["tools"] else values


class _Asked:
    """Lines to and from the bridge."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def send(self, request: Mapping[str, Json]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def reply(self) -> Mapping[str, Json]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DataError(f"the process of verifiers ended with code {self._process.wait()}; its messages are above.")
        reply: dict[str, Json] = json.loads(line)
        if reply["op"] == "fatal":
            raise DataError(f"verifiers: {reply['error']}. It needs verifiers 0.1.11 to 0.3 and the environment there.")
        return reply


@contextmanager
def _bridge(python: str) -> Iterator[_Asked]:
    try:
        process = subprocess.Popen(
            [python, *verifiers_bridge.OPTIONS, verifiers_bridge.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=verifiers_bridge.environment(os.environ),
        )
    except OSError as error:
        raise DataError(f"--set python={python} cannot be started: {error.strerror or error}.") from error
    try:
        yield _Asked(process)
    finally:
        process.kill()
        process.wait()


CONVERTER = Converter(
    description="verifiers (0.1.11 to 0.3): the data set of an environment with load_environment",
    convert=convert,
    settings={
        "environment": "its id, as for load_environment",
        "args": "arguments of load_environment, as a JSON object",
        "python": "a Python that has verifiers and the environment; this one if not set",
        "limit": "rows at most of each split; all if not set",
    },
    needs_files=False,
)
