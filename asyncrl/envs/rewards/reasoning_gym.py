"""Tasks of the library reasoning-gym, scored by the data set that made them.

A row says which data set, how it was configured and which entry: the entry is made again and scored by its own
`score_answer`, so that nothing of it has to survive a file. It needs the extra asyncrl[reasoning-gym].

Some data sets hand the answer to something that evaluates Python. Those get answers alone that can be no more than
arithmetic, or, where it is no parser of sympy's, which looks into texts, than data: numbers, texts, lists, boards of
single letters. Any other is scored as an empty one.
"""

import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from asyncrl.data.converters.reasoning_gym import ROW_KEY
from asyncrl.data.values import Json, kind
from asyncrl.errors import RewardError

CACHED_DATASETS, CACHED_ENTRIES = 64, 1024
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_PARSES = re.compile(r"\b(?:parse_expr|sympify)\s*\(")
_EVALUATES = re.compile(r"\b(?:eval|exec)\s*\(")
_CHARACTERS = re.compile(r"[0-9A-Za-z+\-*/^%=<>,.()\s]*")  # no quotes, no underscores, no brackets
_ATTRIBUTE = re.compile(r"[A-Za-z)]\s*\.|\.\s*[A-Za-z]")
_BOARD = re.compile(r"\w(?:\s+\w)*", re.ASCII)
_CALLED = re.compile(r"([A-Za-z][0-9A-Za-z]*)\s*\(")
FUNCTIONS = frozenset(
    [
        "sqrt",
        "exp",
        "log",
        "ln",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "abs",
        "Abs",
        "Rational",
        "Integer",
    ]
)


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
    dataset = _dataset(name, config)
    if not _harmless_for(type(dataset).__module__)(answer):
        answer = ""
    return float(dataset.score_answer(answer=answer, entry=entry))


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


def is_arithmetic(text: str) -> bool:
    """Whether Python that is evaluated from it can be no more than numbers, names and FUNCTIONS of them."""
    called = (name for name in _CALLED.findall(text) if len(name) > 1)
    return (
        _CHARACTERS.fullmatch(text) is not None
        and _ATTRIBUTE.search(text) is None
        and all(name in FUNCTIONS for name in called)
    )


def is_arithmetic_or_data(text: str) -> bool:
    """Whether Python that is evaluated from it can be no more than arithmetic, or a value written out, also as JSON; a
    board (`_ Q _`) is not even Python."""
    is_board = _BOARD.fullmatch(text) is not None
    return is_board or is_arithmetic(text) or _is_read_by(ast.literal_eval, text) or _is_read_by(json.loads, text)


def _is_read_by(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


@lru_cache(CACHED_DATASETS)
def _harmless_for(module: str) -> Callable[[str], bool]:
    """Which answers a data set's module may have, which may evaluate text anywhere; one whose source is not to be had
    counts as if it did."""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return is_arithmetic
    if _PARSES.search(source):
        return is_arithmetic
    return is_arithmetic_or_data if _EVALUATES.search(source) else lambda text: True


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
