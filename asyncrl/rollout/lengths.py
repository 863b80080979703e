"""Lengths of the answers that ended with this worker and came to no batch, for the report on length bias."""

from collections import defaultdict
from collections.abc import Sequence

from asyncrl.report.answer_lengths import AnswerLengths
from asyncrl.report.rollout_facts import by_source_json
from asyncrl.rollout.progress import Progress

IN = ("ready", "done")  # outcomes of groups that are in
OVER = ("filtered", "stale", "dead", "waiting")  # outcomes with which the ledger drops what was parked, too


class EndedLengths:
    """By data source; bounded in size however many answers end."""

    def __init__(self) -> None:
        self._by_source: dict[str, AnswerLengths] = defaultdict(AnswerLengths)

    def note(self, outcome: str, source: str, members: Sequence[Progress], *, is_parked: bool) -> None:
        """Count a group that has its outcome.

        Args:
            members: its episodes; those without a trajectory were cut off where they were.
            is_parked: its answers have not ended if it is given back: the next owner goes on from them.
        """
        if outcome in IN or (is_parked and outcome not in OVER):
            return
        lengths = self._by_source[source]
        lengths.add(member.num_sampled for member in members if member.trajectory is not None)
        # One that had no token yet may have been long at its server: it counts as cut at a length that nobody knows.
        lengths.add((member.num_sampled for member in members if member.trajectory is None), cut=True)

    def as_fact(self) -> str:
        """For the worker's report; empty before anything ended so."""
        return by_source_json(self._by_source) if self._by_source else ""
