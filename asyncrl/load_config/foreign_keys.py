"""Keys that users of other systems would type, our key for each, and what differs in meaning or unit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from asyncrl.load_config.foreign_key_table import ROWS
from asyncrl.load_config.keys import known_keys, known_sections


@dataclass(frozen=True)
class ForeignKey:
    """One row: `key` of `system` is `ours` here ("" if there is none); `note` says what differs."""

    system: str
    key: str
    ours: str
    note: str


def answer(key: str) -> str | None:
    """What to tell somebody who typed another system's key; None if no system is known to have it.

    Its full name counts, and its last part where that cannot be a slip of one of our own keys.
    """
    rows = _by_full_name().get(key) or ()
    section, _, name = key.rpartition(".")
    if not rows and ("_" in name or section == "" or section not in known_sections()):
        rows = _by_last_part().get(name, ())
    texts = {
        f"{'this' if row.key == key else row.key} is {row.system}'s key; "
        + (f"here it is {row.ours}: {row.note}" if row.ours else f"there is no such key here: {row.note}")
        for row in rows
    }
    return ". ".join(sorted(texts)) or None


@cache
def _by_full_name() -> Mapping[str, Sequence[ForeignKey]]:
    table: dict[str, list[ForeignKey]] = defaultdict(list)
    for row in FOREIGN_KEYS:
        table[row.key].append(row)
    return table


@cache
def _by_last_part() -> Mapping[str, Sequence[ForeignKey]]:
    """Without the parts that end a key of ours too: for those the nearest key of ours is the better answer."""
    own = {key.rpartition(".")[2] for key in known_keys()}
    table: dict[str, list[ForeignKey]] = defaultdict(list)
    for row in FOREIGN_KEYS:
        if (name := row.key.rpartition(".")[2]) not in own:
            table[name].append(row)
    return table


FOREIGN_KEYS: Sequence[ForeignKey] = tuple(ForeignKey(system, *row) for system, rows in ROWS.items() for row in rows)
