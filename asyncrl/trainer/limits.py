"""When a run ends before trainer.steps are done: its hours are used up, or its target is reached."""

from typing import Literal, Protocol

from asyncrl.trainer.agreement import Decision, decided_by_rank0
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.parallel import Channel

Reached = Literal["steps", "max_hours", "target_score"]


class Bounds(Protocol):
    """The part of TrainerConfig that ends a run."""

    @property
    def steps(self) -> int: ...
    @property
    def max_hours(self) -> float | None: ...
    @property
    def target_score(self) -> float | None: ...


class Limits:
    """Looks at the bounds before each step. Every rank calls `reached` together; rank 0 knows clock and scores."""

    def __init__(self, bounds: Bounds, lineage: Lineage, ranks: Channel) -> None:
        self._bounds, self._lineage, self._ranks = bounds, lineage, ranks
        self._best_score: float | None = None

    def scored(self, score: float | None) -> None:
        """The held-out score of a version; on rank 0."""
        if score is not None:
            self._best_score = score if self._best_score is None else max(score, self._best_score)

    async def reached(self) -> Reached | None:
        """Which bound ends the run now; None: another step may begin."""
        bounds = self._bounds
        if self._lineage.step >= bounds.steps:
            return "steps"
        if bounds.max_hours is None and bounds.target_score is None:
            return None

        async def look() -> Decision:
            best, target = self._best_score, bounds.target_score
            if best is not None and target is not None and best >= target:
                return {"reached": "target_score"}
            if bounds.max_hours is not None and self._lineage.spent_s() >= bounds.max_hours * 3600:
                return {"reached": "max_hours"}
            return {"reached": None}

        found: Reached | None = (await decided_by_rank0(self._ranks, look))["reached"]
        return found
