"""Weight deltas against memcpy and against a plain sparse update, side by side: size, encode, check, apply.

    scripts/bench delta [--words MI] [--fractions 0.01,0.03,0.1] [--repeats N]

Times are CPU seconds of this thread, the least of interleaved repeats, divided by a memcpy of the same bf16 buffer in
the same run. `plain` is the usual sparse update: int32 indices and bf16 values (6 bytes a change), applied through a
NaN-filled dense tensor and a mask. Pairs are synthetic: normal fp32 masters, Adam-like steps, cast to bf16.
It does not show a network, a GPU, or a model whose weights change otherwise.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from weightsync.codec import HEAD_BYTES, Encoder, FrameHeader, open_frame
from weightsync.digest import MASK, digest
from weightsync.layout import AddressTable, Bucket, Segment, Words

BUCKET_WORDS = 4 << 20
HEADER = FrameHeader(layout=1, base=1, target=2, bucket=0)


def main(argv: Sequence[str] = ()) -> dict[str, float]:
    """Figures by change fraction, in percent of words."""
    parser = argparse.ArgumentParser(prog="scripts/bench delta", description=__doc__)
    parser.add_argument("--words", type=int, default=16, help="Mi words of the tensor")
    parser.add_argument("--fractions", default="0.01,0.03,0.1", help="fractions of words that change")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    figures: dict[str, float] = {"num_words": float(options.words << 20)}
    for fraction in (float(text) for text in options.fractions.split(",")):
        measured = measure(options.words << 20, fraction, options.repeats)
        figures |= {f"{name}_{100 * fraction:g}pct": value for name, value in measured.items()}
    return figures


def measure(num_words: int, fraction: float, repeats: int) -> dict[str, float]:
    """All figures of one pair."""
    old, new = pair(num_words, fraction)
    encoder, target, applied = Encoder(), np.empty_like(new), old.copy()
    spans = [slice(at, min(at + BUCKET_WORDS, num_words)) for at in range(0, num_words, BUCKET_WORDS)]
    parts = [(span, *_bucket(span)) for span in spans]

    def encode() -> list[bytes]:
        encoded = (encoder.delta(old[span], new[span], HEADER, table, 0) for span, _, table in parts)
        return [one.frame for one in encoded if one is not None]

    frames = encode()
    opened = [open_frame(f, bucket=bucket, header=HEADER) for f, (_, bucket, _) in zip(frames, parts, strict=True)]

    def apply() -> int:
        return sum(f.apply(applied[span], table) for f, (span, _, table) in zip(opened, parts, strict=True)) & MASK

    gain = apply()
    assert np.array_equal(applied, new), "the applied delta is not exact"
    assert (digest(old, 0) + gain) & MASK == digest(new, 0), "the digest does not follow"
    old_t, new_t = (torch.from_numpy(words.view(np.int16)).view(torch.bfloat16) for words in (old, new))
    index, values = plain_encode(old_t, new_t)
    plain_target = old_t.clone()
    seconds = interleaved(
        {
            "memcpy": lambda: np.copyto(target, new),
            "encode": encode,
            "check": lambda: [
                open_frame(f, bucket=b, header=HEADER) for f, (_, b, _) in zip(frames, parts, strict=True)
            ],
            "apply": apply,
            "digest": lambda: digest(new, 0),
            "plain_encode": lambda: plain_encode(old_t, new_t),
            "plain_apply": lambda: plain_apply(plain_target, index, values),
        },
        repeats,
    )
    num_changed, num_bytes = int((old != new).sum()), sum(map(len, frames))
    memcpy = seconds.pop("memcpy")
    ours_apply = seconds["check"] + seconds["apply"]
    return {
        "changed_fraction": round(num_changed / num_words, 5),
        "bytes_per_changed": round((num_bytes - HEAD_BYTES * len(frames)) / num_changed, 3),
        "bytes_over_floor": round(num_bytes / num_changed / entropy_floor(old, new), 3),
        "times_smaller_than_plain": round(6 * num_changed / num_bytes, 2),
        "fraction_of_dense": round(num_bytes / new.nbytes, 4),
        **{f"{name}_over_memcpy": round(value / memcpy, 2) for name, value in seconds.items()},
        "plain_encode_over_encode": round(seconds["plain_encode"] / seconds["encode"], 2),
        "plain_apply_over_apply": round(seconds["plain_apply"] / ours_apply, 2),
    }


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least CPU seconds of each call, all of them once in every round, so that noise hits all alike."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            least[name] = min(least[name], time.thread_time() - start)
    return least


def pair(num_words: int, fraction: float) -> tuple[Words, Words]:
    """bf16 words before and after a step whose size changes about `fraction` of them."""
    low, high = 1e-9, 1e-1
    for _ in range(40):
        size = (low * high) ** 0.5
        old, new = _step(1 << 17, size, seed=99)
        low, high = (size, high) if np.mean(old != new) < fraction else (low, size)
    return _step(num_words, size, seed=11)


def _step(num_words: int, size: float, seed: int) -> tuple[Words, Words]:
    rng = np.random.default_rng(seed)
    master = rng.standard_normal(num_words, dtype=np.float32) * np.float32(0.02)
    update = np.clip(rng.standard_normal(num_words, dtype=np.float32) * np.float32(0.4), -1, 1)
    return _bf16(master), _bf16(master - np.float32(size) * update)


def _bf16(values: np.ndarray) -> Words:
    bits = values.view(np.uint32)
    return ((bits + ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)).astype(np.uint16)


def _bucket(span: slice) -> tuple[Bucket, AddressTable]:
    count = span.stop - span.start
    bucket = Bucket(0, 0, 2, (Segment("w", span.start, count),))
    return bucket, AddressTable(np.array([count]), np.array([span.start]))


def entropy_floor(old: Words, new: Words) -> float:
    """Shannon bytes per changed word, of positions and differences drawn independently."""
    changed = old != new
    p = float(changed.mean())
    positions = -(p * np.log2(p) + (1 - p) * np.log2(1 - p)) / p
    _, counts = np.unique(new[changed] - old[changed], return_counts=True)
    share = counts / counts.sum()
    return float(positions - (share * np.log2(share)).sum()) / 8


def plain_encode(old: torch.Tensor, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and new values of the words that differ."""
    index = (old.view(torch.int16) != new.view(torch.int16)).nonzero().view(-1)
    return index.to(torch.int32), new[index]


def plain_apply(target: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    """NaN marks what was not sent."""
    dense = torch.full((target.numel(),), float("nan"), dtype=target.dtype)
    dense.index_copy_(0, index.to(torch.int64), values)
    sent = ~torch.isnan(dense)
    target[sent] = dense[sent]
