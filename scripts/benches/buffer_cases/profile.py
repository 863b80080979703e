"""Where the time goes: the functions of each process with the most own time, the server by command and by script."""

import sys
from typing import Any

from buffer.scripts import script
from scripts.benches.buffer_cases.flow import CONTENDERS, measure
from scripts.benches.buffer_cases.processes import Outcome

SCRIPTS = ("reserve", "renew", "put", "lease", "advance", "commit", "lineage", "sweep", "recover")


def show(num_producers: int, count: int) -> None:
    """Print it for every contender. Under the profiler Python costs about twice its time; shares hold, sums do not."""
    for name in CONTENDERS:
        _, outcome = measure(name, num_producers, count, profile=True)
        print(f"== {name}, {num_producers} producers, {count} groups; microseconds a group", file=sys.stderr)
        _show_server(outcome, count)
        for role, found in zip(("consumer", "first producer"), outcome.found, strict=False):
            share = count if role == "consumer" else count // num_producers
            print(f"-- {role}: own us a group, total, calls a group", file=sys.stderr)
            for what, calls, own, total in found["profile"]:
                print(
                    f"  {1e6 * own / share:8.1f} {1e6 * total / share:8.1f} {calls / share:7.2f}  {what}",
                    file=sys.stderr,
                )


def _show_server(outcome: Outcome, count: int) -> None:
    stats: dict[str, Any] = {key: value for key, value in outcome.info.items() if key.startswith("cmdstat_")}
    print(f"-- server: {1e6 * outcome.server_s / count:.1f} us a group; by command: us, calls a group", file=sys.stderr)
    for key, value in sorted(stats.items(), key=lambda item: -item[1]["usec"]):
        if value["usec"] / count >= 0.5:
            print(f"  {value['usec'] / count:8.1f} {value['calls'] / count:7.2f}  {key[8:]}", file=sys.stderr)
    names = {script(name).sha: name for name in SCRIPTS}
    for sha, (calls, us) in sorted(outcome.scripts.items(), key=lambda item: -item[1][1]):
        what = names.get(sha, "raw: list_if_fresh")
        print(f"  {us / count:8.1f} {calls / count:7.2f}  script {what}: {us / calls:.1f} us a call", file=sys.stderr)
