"""What a converter is: it reads the public files of a data set, or makes them, and gives rows in verl's schema."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from asyncrl.data.values import Json


@dataclass(frozen=True)
class ConvertedRow:
    """A row for one of the output files.

    Attributes:
        split: the file that it goes to: train, test, ...
        place: where it came from, for people.
        values: its columns: data_source, prompt, ability, reward_model, extra_info.
        solution: a text that the row's reward must find right, for a check; None: there is none.
    """

    split: str
    place: str
    values: Mapping[str, Json]
    solution: str | None = None


@dataclass(frozen=True)
class Unusable:
    """A record that makes no row: where it is, a word to count by, and what a person reads."""

    place: str
    reason: str
    text: str


Settings = Mapping[str, str]
Convert = Callable[[Path | None, Settings], Iterator[ConvertedRow | Unusable]]
"""(file or folder, settings) -> rows in order, the same ones each time. Raises DataError: it cannot begin, or go on."""


@dataclass(frozen=True)
class Converter:
    """One row of the table of converters.

    Attributes:
        description: one line.
        convert: makes the rows.
        settings: what may be set by --set NAME=VALUE, and what it means.
        needs_files: whether it reads what --from names.
    """

    description: str
    convert: Convert
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    needs_files: bool = True


def verl_row(
    *, data_source: str, prompt: str, ability: str, ground_truth: Json, extra_info: Mapping[str, Json]
) -> dict[str, Json]:
    """A row's columns, as verl's own converters name them. prompt: the text of the one user message."""
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": prompt}],
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": dict(extra_info),
    }
