"""Seeds by place, not by time: the same episode draws the same numbers whoever plays it, and however often."""

import hashlib
import struct
from typing import Literal

Stream = Literal["train", "eval"]
_STREAMS: dict[str, int] = {"train": 0, "eval": 1, "environment": 2}
_BITS = 63  # servers keep seeds in signed 64-bit integers


def sampling_seed(run_seed: int, stream: Stream, ordinal: int, episode: int, num_tokens: int) -> int:
    """Seed of one generation request, in [0, 2**63).

    It depends on the tokens so far and not on the attempt: a retry draws what the first try drew, and what comes after
    a cut answer is drawn from a seed of its own.
    """
    return _hash(run_seed, _STREAMS[stream], ordinal, episode, num_tokens)


def environment_seed(run_seed: int, stream: Stream, ordinal: int, episode: int) -> int:
    """Seed of an episode's environment, in [0, 2**63)."""
    return _hash(run_seed, _STREAMS["environment"], _STREAMS[stream], ordinal, episode)


def _hash(*numbers: int) -> int:
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> (64 - _BITS)
