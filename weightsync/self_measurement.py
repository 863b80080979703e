"""Rates of this machine: what a version costs here to encode, check, add and digest, and what a transport moves.

Words are random bfloat16 and changes are small steps of some of them. Wall seconds, the least of some rounds: what a
quiet moment of this machine gives. numpy only.
"""

import secrets
import time
from collections.abc import Callable, Mapping

import numpy as np

from weightsync import diff
from weightsync.codec import Encoder, FrameHeader, open_frame
from weightsync.digest import digest
from weightsync.layout import AddressTable, Bucket, Segment, Words
from weightsync.transport.base import Transport, part_key, run_prefix

_ROUNDS = 5
_DEADLINE_S = 120.0
_HEADER = FrameHeader(layout=1, base=1, target=2, bucket=0)


def measure(num_words: int, changed: float, transport: Transport | None, run: str) -> dict[str, object]:
    """Gigabytes of bfloat16 weights a second for each step, on one core.

    Args:
        num_words: of one bucket.
        changed: fraction of words that change.
        transport: parts of one frame and of the dense words are put and got, then deleted; None: not measured.
        run: whose prefix the parts get.
    Raises:
        TransportError: the transport cannot be reached.
    """
    old, new = _pair(num_words, changed)
    bucket = Bucket(0, 0, 2, (Segment("w", 0, num_words),))
    table = AddressTable(np.array([num_words], np.int64), np.zeros(1, np.int64))
    encoder, copy, target = Encoder(), np.empty_like(new), old.copy()
    encoded = encoder.delta(old, new, _HEADER, table, digest(old, 0))
    assert encoded is not None, "some words changed"
    frame = open_frame(encoded.frame, bucket=bucket, header=_HEADER)
    seconds = _least(
        {
            "memcpy": lambda: np.copyto(copy, new),
            "encode": lambda: encoder.delta(old, new, _HEADER, table, 0),
            "check": lambda: open_frame(encoded.frame, bucket=bucket, header=_HEADER),
            "apply": lambda: frame.apply(target, table),
            "digest": lambda: digest(new, 0),
        }
    )
    found: dict[str, object] = {
        "numba": diff.HAVE_NUMBA,
        "words": num_words,
        "changed": encoded.num_changed,
        "bytes_per_changed": round(len(encoded.frame) / encoded.num_changed, 3),
        **{f"{name}_gb_s": _rate(new.nbytes, value) for name, value in seconds.items()},
    }
    if transport is not None:
        found |= _transport_rates(transport, run, {"frame": encoded.frame, "dense": new.tobytes()})
    return found


def _transport_rates(transport: Transport, run: str, parts: Mapping[str, bytes]) -> dict[str, object]:
    prefix = f"{run_prefix(run)}0:0:{secrets.token_hex(8)}:"
    found: dict[str, object] = {}
    try:
        for rank, (name, blob) in enumerate(parts.items()):
            buffer, least = memoryview(bytearray(len(blob))), {"put": float("inf"), "get": float("inf")}
            for turn in range(_ROUNDS):  # a key is written once
                key, start = part_key(prefix, rank, turn), time.perf_counter()
                transport.put_part(key, [memoryview(blob)], deadline_s=_DEADLINE_S)
                least["put"] = min(least["put"], time.perf_counter() - start)
                start = time.perf_counter()
                transport.get_part_into(key, buffer, deadline_s=_DEADLINE_S)
                least["get"] = min(least["get"], time.perf_counter() - start)
            found |= {f"{name}_{step}_gb_s": _rate(len(blob), seconds) for step, seconds in least.items()}
    finally:
        transport.delete(prefix)
    return found


def _pair(num_words: int, changed: float) -> tuple[Words, Words]:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(num_words, dtype=np.float32) * np.float32(0.02)).view(np.uint32)
    old = (values >> np.uint32(16)).astype(np.uint16)
    new = old.copy()
    chosen = rng.choice(num_words, max(1, int(changed * num_words)), replace=False)
    new[chosen] += rng.choice(np.array([1, 65535, 2, 65534], np.uint16), chosen.size, p=(0.45, 0.45, 0.05, 0.05))
    return old, new


def _least(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


def _rate(num_bytes: int, seconds: float) -> float:
    return round(num_bytes / seconds / 1e9, 3)
