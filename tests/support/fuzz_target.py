"""What a decoder under fuzz is, and damage for those that read JSON."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.fuzz_mutate import bend, bend_bytes


@dataclass(frozen=True)
class Target:
    """One decoder.

    valid: draws a valid input. damage: bends one; parts of others may get into it. decode: the decoder; it answers or
    raises one of `refusals`. check: raises AssertionError if what was decoded is not sound.
    """

    refusals: tuple[type[Exception], ...]
    valid: Callable[[random.Random], bytes]
    damage: Callable[[bytes, random.Random, Sequence[bytes]], bytes]
    decode: Callable[[bytes], object]
    check: Callable[[Any], None]
    longest_message: int = 2000
    """Characters of a refusal: it is logged, and of a payload it is kept in the ledger beside the ordinal."""


def damage_json(blob: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """JSON with parts changed, left out, repeated or of other types; now and then no JSON any more."""
    tree = bend(json.loads(blob), draw)
    try:
        blob = json.dumps(tree).encode()
    except (TypeError, ValueError):
        return blob  # what JSON cannot hold
    if draw.random() < 0.05:  # numbers that Python reads and no machine word holds
        huge = draw.choice((b"1e400", b"-1e400", b"9" * 25, b"1" + b"0" * 400, b"NaN"))
        blob = re.sub(rb"(?<=[ \[])-?[0-9]+(?=[,\]}])", huge, blob, count=draw.choice((1, 3)))
    return bend_bytes(blob, draw, others) if draw.random() < 0.1 else blob
