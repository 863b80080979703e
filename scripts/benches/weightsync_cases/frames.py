"""One version as frames, against memcpy of the same words and against the plain sparse delta: bytes, encode, apply."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import torch

from scripts.benches.peers import verl_like
from scripts.benches.weightsync_cases.pairs import Figures, Pair, interleaved, percent
from scripts.benches.weightsync_cases.training import Trained
from weightsync.codec import HEAD_BYTES, Encoder, Frame, open_frame
from weightsync.digest import MASK, digest, total
from weightsync.layout import Words


def compare(model: Trained, fractions: Sequence[float], repeats: int) -> Figures:
    """Figures of every fraction; `_3pct` names the fraction."""
    figures: Figures = {"num_words": float(model.manifest.num_words)}
    for fraction in fractions:
        measured = measure(Pair.at(model, fraction), repeats)
        figures |= {f"{name}_{percent(fraction)}": value for name, value in measured.items()}
    return figures


def measure(pair: Pair, repeats: int) -> Figures:
    """All figures of one pair."""
    frames = encode(pair, Encoder())
    applied = {bucket: words.copy() for bucket, words in pair.snapshot.items()}
    _check(pair, frames, applied)
    new, old = pair.tensors(pair.new), pair.tensors(pair.old)
    rounds, target = list(verl_like.encode(new, old)), pair.tensors(pair.old.copy())
    for one in rounds:
        verl_like.apply(one, target)
    assert all(torch.equal(target[name].view(torch.int16), new[name].view(torch.int16)) for name in new)
    encoder, copy = Encoder(), np.empty_like(pair.new)
    seconds = interleaved(
        {
            "memcpy": lambda: np.copyto(copy, pair.new),
            "frame": lambda: encode(pair, encoder),
            "check": lambda: opened(pair, frames),
            "check_apply": lambda: apply(pair, frames, applied),
            "audit": lambda: digest(pair.new, 0),
            "verl_encode": lambda: list(verl_like.encode(new, old)),
            "verl_apply": lambda: [verl_like.apply(one, target) for one in rounds],
        },
        repeats,
    )
    memcpy = seconds.pop("memcpy")
    return {
        **sizes(pair, frames, sum(one.num_bytes for one in rounds)),
        "memcpy_gb_s": round(pair.new.nbytes / memcpy / 1e9, 2),
        **{f"{name}_over_memcpy": round(value / memcpy, 2) for name, value in seconds.items()},
        "vs_verl_encode": round(seconds["verl_encode"] / seconds["frame"], 2),
        "vs_verl_apply": round(seconds["verl_apply"] / seconds["check_apply"], 2),
        "two_encoders_over_one": round(two_encoders(pair, repeats), 2),
        "encode_words_s": round(pair.new.size / seconds["frame"]),
        "check_bytes_s": round(sum(map(len, frames.values())) / seconds["check"]),
    }


def encode(pair: Pair, encoder: Encoder, every: int = 1, first: int = 0) -> dict[int, bytes]:
    """Buckets as a trainer rank makes their frames: compared, coded, compressed, sealed."""
    found = {}
    for bucket in pair.plan.buckets[first::every]:
        old, new = pair.snapshot[bucket.id], pair.staged[bucket.id]
        encoded = encoder.delta(old, new, pair.header(bucket), pair.tables[bucket.id], 0)
        if encoded is not None:
            found[bucket.id] = encoded.frame
    return found


def opened(pair: Pair, frames: dict[int, bytes]) -> list[Frame]:
    """The frames with all their checks, planes decompressed."""
    return [
        open_frame(frame, bucket=(bucket := pair.plan.buckets[i]), header=pair.header(bucket))
        for i, frame in frames.items()
    ]


def apply(pair: Pair, frames: dict[int, bytes], applied: dict[int, Words]) -> int:
    """Check, add and follow the digest; its gain."""
    return total(frame.apply(applied[frame.bucket.id], pair.tables[frame.bucket.id]) for frame in opened(pair, frames))


def sizes(pair: Pair, frames: dict[int, bytes], plain_bytes: int) -> Figures:
    """Bytes of a version, by its changed words, its entropy, and what others send."""
    num_bytes, num_changed = sum(map(len, frames.values())), int((pair.old != pair.new).sum())
    return {
        "changed_fraction": round(num_changed / pair.new.size, 5),
        "bytes_per_changed": round(num_bytes / num_changed, 4),
        "floor_bytes_per_changed": round(entropy_floor(pair.old, pair.new), 4),
        "over_floor": round(num_bytes / num_changed / entropy_floor(pair.old, pair.new), 4),
        "head_bytes": float(HEAD_BYTES * len(frames)),
        "of_dense": round(num_bytes / pair.new.nbytes, 4),
        "times_smaller_than_verl": round(plain_bytes / num_bytes, 2),
    }


def entropy_floor(old: Words, new: Words) -> float:
    """Shannon bytes per changed word, of positions and differences drawn independently."""
    changed = old != new
    p = float(changed.mean())
    positions = -(p * np.log2(p) + (1 - p) * np.log2(1 - p)) / p
    counts = np.bincount((new[changed] - old[changed]).astype(np.int64))
    share = counts[counts > 0] / counts.sum()
    return float(positions - (share * np.log2(share)).sum()) / 8


def two_encoders(pair: Pair, repeats: int) -> float:
    """Wall time of one encoder over that of two in threads, each with half of the buckets; least over least."""
    encoders = [Encoder(), Encoder()]

    def both() -> None:
        threads = [threading.Thread(target=encode, args=(pair, encoders[i], 2, i)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def one() -> None:
        encode(pair, encoders[0])

    least = {one: float("inf"), both: float("inf")}
    for _ in range(repeats):
        for call in least:
            start = time.perf_counter()
            call()
            least[call] = min(least[call], time.perf_counter() - start)
    return least[one] / least[both]


def _check(pair: Pair, frames: dict[int, bytes], applied: dict[int, Words]) -> None:
    """The frames make the new words, bit for bit, and the digest follows."""
    gain = apply(pair, frames, applied)
    assert all(np.array_equal(applied[bucket], words) for bucket, words in pair.staged.items()), "not exact"
    assert (digest(pair.old, 0) + gain) & MASK == digest(pair.new, 0), "the digest does not follow"
