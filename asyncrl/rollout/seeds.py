"""Seeds by place, not by time: the same episode draws the same numbers whoever plays it, and however often."""

import hashlib
import struct
from typing import Literal

Stream = Literal["train", "eval"]
_STREAMS: dict[str, int] = {"train": 0, "eval": 1, "environment": 2}
_BITS = 63  # servers keep seeds in signed 64-bit integers


def sampling_seed(run_seed: int, stream: Stream, ordinal: int, episode: int, row: int = 0) -> int:
    """Seed of the generation requests of one row of an episode, in [0, 2**63).

    A server draws by seed and position (the local engine always, SGLang in its deterministic mode), so a request that
    continues a cut answer, here or by the ordinal's next owner, draws what the uncut one would have drawn; and so does
    a retry, and a prompt that is played again after its group was stale or dead. Other numbers each time would select:
    answers that end with a failure would be drawn anew until there is one that does not, and those are the short ones.
    The numbers alone make no answer: under weights that have moved on meanwhile they draw another one.
    Positions begin anew with a row, hence its number.
    """
    return _hash(run_seed, _STREAMS[stream], ordinal, episode, row)


def environment_seed(run_seed: int, stream: Stream, ordinal: int, episode: int) -> int:
    """Seed of an episode's environment, in [0, 2**63)."""
    return _hash(run_seed, _STREAMS["environment"], _STREAMS[stream], ordinal, episode)


def _hash(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> (64 - _BITS)
