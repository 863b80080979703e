"""Seconds a version of models that do not fit here: a pipeline of the rates that were just measured, for many links.

Each trainer rank encodes its shard with ENCODERS threads and sends it on its node's link (8 ranks a node); every node
of servers takes the whole delta on one link and checks it with DECODERS threads. The slowest step sets the pace, the
others add one bucket each. A rate is the one of this machine divided by DERATE, since all cores of a server at once are
slower than one of an idle machine. Ideal dense is the bytes over the link and nothing else.

verl's figures are those of its own report for its sharded delta (verl-project/verl, issue 7060, July 2026, H100, 2.1 to
2.6 % changed): seconds of a whole sync; for 32B without and with offload.
"""

import sys
from dataclasses import dataclass

from scripts.benches.weightsync_cases.frames import measure
from scripts.benches.weightsync_cases.pairs import Figures, Pair
from scripts.benches.weightsync_cases.training import Trained

FRACTION = 0.03
LINKS = (10, 25, 100, 400)
ENCODERS, DECODERS, DERATE = 4, 16, 2.5
WIRE, BUCKET_WORDS, FIXED_S = 0.85, 4 << 20, 0.05
MODELS = {"7b": (7.6e9, 8, "3.8-4.9"), "32b": (32.8e9, 16, "6.2, 11-12.5"), "72b": (72.7e9, 32, "12.0-13.0")}


@dataclass(frozen=True)
class Rates:
    """Measured here: words encoded and bytes of frames checked a second and core, bytes a changed word."""

    encode: float
    check: float
    bytes_per_changed: float


def project(model: Trained, repeats: int) -> Figures:
    """The table, to stderr, and its figures."""
    found = measure(Pair.at(model, FRACTION), repeats)
    rates = Rates(found["encode_words_s"], found["check_bytes_s"], found["bytes_per_changed"])
    figures: Figures = {"model_encode_words_s": rates.encode, "model_check_bytes_s": rates.check}
    print("model  Gb/s  delta s  bottleneck  ideal dense s  verl's report s", file=sys.stderr)
    for name, (words, ranks, published) in MODELS.items():
        for link in LINKS:
            seconds, bottleneck = version_s(rates, words, ranks, link)
            dense = 2 * words / (link * 1e9 / 8 * WIRE)
            figures |= {f"model_{name}_{link}gbps_s": round(seconds, 3)}
            figures |= {f"model_{name}_{link}gbps_dense_s": round(dense, 3)}
            print(f"{name:5s} {link:5d} {seconds:8.2f}  {bottleneck:10s} {dense:13.2f}  {published}", file=sys.stderr)
    return figures


def version_s(rates: Rates, words: float, ranks: int, link: float) -> tuple[float, str]:
    """(seconds, slowest step) of one version."""
    wire = link * 1e9 / 8 * WIRE
    num_bytes = words * FRACTION * rates.bytes_per_changed
    steps = {
        "encode": words / ranks / (rates.encode / DERATE * ENCODERS),
        "wire": num_bytes / wire,  # a node of servers takes all of it; the trainer's nodes send a part each
        "check": num_bytes / (rates.check / DERATE * DECODERS),
    }
    slowest = max(steps, key=lambda name: steps[name])
    buckets = max(1.0, words / ranks / BUCKET_WORDS)
    return steps[slowest] + (sum(steps.values()) - steps[slowest]) / buckets + FIXED_S, slowest
