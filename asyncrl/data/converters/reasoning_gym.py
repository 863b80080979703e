"""reasoning-gym: entries of a procedural data set, by its name, settings and seed. Needs asyncrl[reasoning-gym].

A row keeps what makes its entry again, since only the data set that made an entry can score an answer to it.
"""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.data.converters.base import ConvertedRow, Converter, Settings, Unusable, verl_row
from asyncrl.data.values import Json
from asyncrl.errors import DataError

ROW_KEY = "reasoning_gym"
"""Key of a row's extra_info: {"dataset": name, "config": its settings as JSON, "index": of the entry}."""
DATA_SOURCE = "reasoning_gym"
INSTRUCTION = "Put the final answer, and nothing else, between <answer> and </answer>."
SIZE, SEED = 1000, 0


def convert(path: Path | None, settings: Settings) -> Iterator[ConvertedRow | Unusable]:
    """A row for each entry.

    Raises:
        DataError: the library is not installed, or has no such data set or setting.
    """
    name, config = settings.get("dataset"), _config(settings)
    if name is None:
        raise DataError("--set dataset=NAME is missing: name a data set of reasoning-gym, for example chain_sum.")
    split, instruction = settings.get("split", "train"), settings.get("instruction", INSTRUCTION)
    dataset = _dataset(name, config)
    written = json.dumps(config, sort_keys=True)
    for index in range(len(dataset)):
        entry = dataset[index]
        if not isinstance(entry.get("answer"), str) or not entry["answer"].strip():
            yield Unusable(
                f"entry {index} of {name}", "no_answer", "it has no answer to show that another one is right"
            )
            continue
        place: dict[str, Json] = {"dataset": name, "config": written, "index": index}
        values = verl_row(
            data_source=DATA_SOURCE,
            prompt=f"{entry['question']}\n\n{instruction}".rstrip(),
            ability=name,
            ground_truth=entry["answer"],
            extra_info={"split": split, "index": index, ROW_KEY: place},
        )
        yield ConvertedRow(split, f"entry {index} of {name}", values, solution=f"<answer>{entry['answer']}</answer>")


def _config(settings: Settings) -> dict[str, Any]:
    try:
        config = json.loads(settings.get("config", "{}"))
        numbers = {key: int(settings.get(key, default)) for key, default in (("size", SIZE), ("seed", SEED))}
    except ValueError as error:
        raise DataError(f"--set config= must be JSON, and size and seed whole numbers: {error}.") from None
    if not isinstance(config, dict):
        raise DataError("--set config= must be a JSON object with the data set's settings.")
    return {**numbers, **config}


def _dataset(name: str, config: dict[str, Any]) -> Any:  # Any: the library has no types
    try:
        library = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise DataError(f"reasoning-gym cannot be imported ({error}): install asyncrl[reasoning-gym].") from error
    try:
        return library.create_dataset(name, **config)
    except (ValueError, TypeError, AssertionError) as error:
        raise DataError(f"reasoning-gym cannot make the data set {name!r} with {config}: {error}.") from error


CONVERTER = Converter(
    description="reasoning-gym: entries of one of its data sets",
    convert=convert,
    settings={
        "dataset": "its name, for example chain_sum",
        "config": "its settings as JSON",
        "size": f"entries; {SIZE} if not set",
        "seed": f"of the entries; {SEED} if not set. Held-out entries need another one",
        "split": "name of the file; train if not set",
        "instruction": "what follows the question in the prompt; empty: nothing",
    },
    needs_files=False,
)
