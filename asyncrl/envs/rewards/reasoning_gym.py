"""Tasks of the library reasoning-gym, scored by the data set that made them.

A row says which data set, how it was configured and which entry: the entry is made again and scored by its own
`score_answer`, so that nothing of it has to survive a file. It needs the extra asyncrl[reasoning-gym].
"""

import importlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from asyncrl.data.converters.reasoning_gym import ROW_KEY
from asyncrl.data.values import Json, kind
from asyncrl.errors import RewardError

CACHED_DATASETS, CACHED_ENTRIES = 64, 1024
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def compute_score(data_source: str, solution_str: str, ground_truth: Json, extra_info: object = None) -> float:
    """What the data set says of the answer, mostly 0 to 1: the text in the last `<answer>` tags, or all of it.

    Raises:
        RewardError: the row is none of reasoning-gym's, or the installed version makes another entry from it.
    """
    place = extra_info.get(ROW_KEY) if isinstance(extra_info, Mapping) else None
    if not isinstance(place, Mapping):
        raise RewardError(f"extra_info.{ROW_KEY} is {kind(place)}; `asyncrl data prepare reasoning-gym` writes it")
    name, config, index = place.get("dataset"), place.get("config"), place.get("index")
    if not isinstance(name, str) or not isinstance(config, str) or not isinstance(index, int):
        raise RewardError(f"extra_info.{ROW_KEY} needs dataset (text), config (JSON as text) and index (a number)")
    entry = _entry(name, config, index)
    if ground_truth is not None and str(entry["answer"]) != str(ground_truth):
        raise RewardError(
            f"entry {index} of {name} is not the one of the row: its answer is another. The installed reasoning-gym "
            f"({_library().__version__}) makes other entries than the one that wrote the file; prepare it again."
        )
    found = _ANSWER.findall(solution_str)
    answer = found[-1].strip() if found else solution_str.strip()
    return float(_dataset(name, config).score_answer(answer=answer, entry=entry))


def prepare() -> None:
    """Import it, which takes seconds."""
    _library()


@lru_cache(CACHED_DATASETS)
def _dataset(name: str, config: str) -> Any:  # Any: the library has no types
    """A data set. Raises RewardError: it is not installed, or has no such data set or setting."""
    try:
        return _library().create_dataset(name, **json.loads(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise RewardError(f"reasoning-gym cannot make the data set {name!r} with {config}: {error}") from error


@lru_cache(CACHED_ENTRIES)
def _entry(name: str, config: str, index: int) -> Any:
    return _dataset(name, config)[index]


def _library() -> ModuleType:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise RewardError(
            f"rows of reasoning-gym need the library, which cannot be imported ({error}): install "
            "asyncrl[reasoning-gym]."
        ) from error
