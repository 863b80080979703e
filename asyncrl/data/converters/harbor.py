"""Harbor task directories: each becomes a row that names its directory, for `rollout.environment: harbor`."""

import json
from collections.abc import Iterator
from pathlib import Path

from asyncrl.data.converters.base import ConvertedRow, Converter, Settings, Unusable
from asyncrl.data.harbor_tasks import BASH_SCHEMA, TASK_KEY, read_task, task_directories
from asyncrl.data.values import Json
from asyncrl.errors import DataError

INSTRUCTION = "Work with the tool bash. When you are done, answer without calling it."
DATA_SOURCE = "harbor"


def convert(path: Path | None, settings: Settings) -> Iterator[ConvertedRow | Unusable]:
    """A row for each task that can be played; the others are named. Raises DataError: there are no tasks."""
    if path is None:
        raise DataError("--from is missing: name a directory that holds Harbor tasks.")
    split, instruction = settings.get("split", "train"), settings.get("instruction", INSTRUCTION)
    for index, directory in enumerate(task_directories(path)):
        try:
            task = read_task(directory.resolve())
        except DataError as error:
            yield Unusable(str(directory), "task", str(error))
            continue
        extra: dict[str, Json] = {"split": split, "index": index, "name": task.name, TASK_KEY: str(task.directory)}
        values: dict[str, Json] = {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": f"{task.instruction}\n\n{instruction}".rstrip()}],
            "ability": "agent",
            "tools": json.dumps([BASH_SCHEMA]),  # text: columns would give every tool the keys of all
            "extra_info": extra,
        }
        yield ConvertedRow(split, str(directory), values)


CONVERTER = Converter(
    description="Harbor task directories (task.toml, instruction.md, tests/test.sh), at any depth",
    convert=convert,
    settings={
        "split": "name of the file; train if not set",
        "instruction": "what follows a task's own instruction in the prompt; empty: nothing",
    },
)
