"""The replay buffer against raw Redis moving the same groups: CPU ms a group over all processes, server included.

    scripts/bench buffer [--only flow,...] [--groups N] [--repeats N] [--profile]

A group is 8 trajectories of 512 to 4096 tokens: int32 ids, float32 logprobs, mask; 18.4k tokens on average. Producers,
consumer and server are processes of their own; every contender has the same server (the embedded one: unix socket,
append-only file every second), every repetition a new one, and contenders take turns. Inside the clock: reserve, making
the Group of ready-made trajectories, encode, hash, put; lease of 32, fetch, advance, every 10 steps ledger and commit,
sweep. Outside: making arrays and trajectories, connecting.

over_raw_redis_1p    ours over one SET and one EVALSHA a group (BLMOVE, GET, UNLINK, LREM to take it), one producer:
                     the median of each turn's ratio; _low, _high its extremes; _best: least over least
over_raw_redis_8_blobs_1p    ours over eight SETs and one EVALSHA a group, the form of the peers' script
"""

import argparse
from collections.abc import Callable, Sequence

from scripts.benches.buffer_cases import capacity, flow, latency, memory, ours, peers, profile, resident, sizes

Figures = dict[str, float]


def run_flow(options: argparse.Namespace) -> Figures:
    """1 and 4 producers beside one consumer."""
    figures: Figures = {}
    for num_producers in (1, 4):
        figures |= flow.compare(num_producers, options.groups, options.repeats)
    parts = (figures[f"ours_4p_{part}_ms"] for part in ("server", "producer", "consumer"))
    return figures | capacity.served(*parts)


def run_latency(options: argparse.Namespace) -> Figures:
    """20 groups a second."""
    return latency.compare(20 if options.quick else 200, 1 if options.quick else options.repeats // 2 or 1)


def run_resident(options: argparse.Namespace) -> Figures:
    """1k and 100k ready groups."""
    return resident.compare(*((64, 128, 1) if options.quick else (1_000, 100_000, 6)))


def run_sizes(options: argparse.Namespace) -> Figures:
    """Groups of 1, 10 and 100 MB."""
    return sizes.compare(*(((1,), 1) if options.quick else (sizes.SIZES_MB, 5)))


def run_memory(options: argparse.Namespace) -> Figures:
    """100k groups through a resident set of 0.9 GB."""
    return memory.soak(*((640, 128) if options.quick else (options.soak_groups, 6_400)))


def run_peers(options: argparse.Namespace) -> Figures:
    """TransferQueue and Reverb, 1 and 4 producers."""
    return peers.compare(options.groups, options.repeats)


def run_profile(options: argparse.Namespace) -> Figures:
    """Printed to stderr; no figure of it is comparable."""
    profile.show(1, options.groups)
    return {}


CASES: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "flow": run_flow,
    "latency": run_latency,
    "resident": run_resident,
    "sizes": run_sizes,
    "memory": run_memory,
    "peers": run_peers,
    "profile": run_profile,
}
DEFAULT = ("flow", "latency", "resident", "sizes")


def main(argv: Sequence[str] = ()) -> Figures:
    """Figures of the chosen cases."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench buffer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(DEFAULT), help=f"of {', '.join(CASES)}")
    parser.add_argument("--groups", type=int, default=1920, help="groups a repetition, a multiple of 128")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--soak-groups", type=int, default=100_000, help="groups that pass in the case memory")
    parser.add_argument("--peers", action="store_true", help="TransferQueue and Reverb too; makes their environments")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the keys are right, the figures are not")
    options = parser.parse_args(argv)
    if options.quick:
        options.groups, options.repeats = 128, 1
    if options.groups % (4 * ours.GROUPS_PER_STEP):
        parser.error(f"--groups must be a multiple of {4 * ours.GROUPS_PER_STEP}: 4 producers, whole batches")
    figures: Figures = {}
    for name in [*options.only.split(","), *(["peers"] if options.peers else [])]:
        figures |= CASES[name](options)
    return figures
