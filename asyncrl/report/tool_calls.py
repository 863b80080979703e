"""What became of the tool calls of a run, from the counts that workers report."""

from collections.abc import Iterator, Mapping

CALLS = "tool_calls"
"""Count of all calls; with `_OUTCOME` behind it, of those with that outcome."""
COUNTS = (CALLS, "tool_releases_failed", "tool_rewards_failed")
"""What counts about tools begin with."""
OK = "ok"


def summed(reports: Mapping[str, Mapping[str, float | str]]) -> dict[str, int]:
    """Counts over all sources of reports, by name; those that are 0 are left out."""
    found: dict[str, int] = {}
    for facts in reports.values():
        for name, value in facts.items():
            if name.startswith(COUNTS) and not isinstance(value, str) and value > 0:
                found[name] = found.get(name, 0) + int(value)
    return dict(sorted(found.items()))


def rows_of(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """For people, one row; none without calls."""
    if not (total := counts.get(CALLS, 0)):
        return
    outcomes = {name.removeprefix(f"{CALLS}_"): count for name, count in counts.items() if name != CALLS}
    num_ok = sum(count for name, count in outcomes.items() if name.startswith(OK))
    others = sorted(
        ((name, count) for name, count in outcomes.items() if not name.startswith(OK)), key=lambda item: -item[1]
    )
    failed = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in others)
    yield "tool calls", f"{total:,}, {100 * num_ok / total:.1f} % ok" + (f"; {failed}" if failed else "")
