"""What a worker plays next: a held-out prompt of the open evaluation first, then the next prompt of the run."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from asyncrl.config.data import CurriculumConfig
from asyncrl.data.rows import PromptRow
from asyncrl.rollout.curriculum import Curriculum
from asyncrl.rollout.prompts import Order
from asyncrl.rollout.seeds import Stream
from asyncrl.rollout.work import Work
from buffer import Draw, ReplayBuffer
from buffer.answers import Claim, NotAdmitted

MOST_OFFERS = 8
"""Times that draws are offered anew because others were faster, before the worker waits its turn like any that is not
admitted."""
DRAW = "draw"  # the ledger's reason


class Rows(Protocol):
    """A data set: rows by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> PromptRow: ...


@dataclass(frozen=True)
class Prompts:
    """Which row an ordinal stands for, and how many trajectories it gets.

    Attributes:
        group_size: sampled ones.
        with_baseline: and one that is played greedily.
        curriculum: draws by results; None: the ordinal alone says the row.
    """

    rows: Rows
    order: Order
    group_size: int
    with_baseline: bool = False
    curriculum: CurriculumConfig | None = None

    def row(self, ordinal: int, draw: Draw | None = None) -> PromptRow:
        """The row of an ordinal, or of its draw if it has one. Reads a file: blocks."""
        return self.rows[self.order.index(ordinal) if draw is None else draw.prompt]


class Stopped:
    """The worker was asked to stop: there will be no more work for it."""


class Reservations:
    """Reserves for one worker, and knows what it holds. Its methods block; attempt and wake are called by one thread
    at a time.

    Args:
        buffer: the run's.
        worker: its name, for people.
        train: the run's prompts.
        held_out: those of evaluations, in file order; None: this worker plays no evaluation.
        stopping: whether the worker was asked to stop; asked before each reserve, so that nothing is reserved in vain.
        sweep_every_s: how often a worker that is not admitted looks for claims of the dead.
        room_beside: held-out episodes that this worker may have at once of an evaluation that one server plays beside
            the training prompts; one group in any case.
        spare: told the name of that server, None while there is none.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        worker: str,
        *,
        train: Prompts,
        held_out: Prompts | None,
        stopping: Callable[[], bool],
        sweep_every_s: float,
        room_beside: Callable[[], int] = lambda: 0,
        spare: Callable[[str | None], None] = lambda server: None,
    ) -> None:
        self._room_beside, self._spare = room_beside, spare
        self._buffer, self._worker = buffer, worker
        self._train, self._held_out, self._stopping = train, held_out, stopping
        self._sweep_every_s, self._swept = sweep_every_s, float("-inf")
        self._hints = buffer.hints("room")
        self._curriculum: Curriculum | None = None
        if train.curriculum is not None:
            self._curriculum = Curriculum(train.curriculum, train.order, buffer.pass_rates)
        self._lock = threading.Lock()
        self._held: dict[str, Work] = {}
        self._closed = False
        self.refusal: NotAdmitted | None = None
        """Why the last attempt gave nothing; None after one that did."""

    def attempt(self) -> Work | Stopped | None:
        """Reserve once; None: not admitted, see `why`."""
        with self._lock:
            if self._closed or self._stopping():
                return Stopped()
            work = self._attempt()
            if work is not None:
                self._held[work.claim.token] = work
            return work

    def done(self, work: Work) -> None:
        """The work has its outcome."""
        self._held.pop(work.claim.token, None)

    def close(self) -> None:
        """Reserve no more, and give back at no cost what has no outcome: also what a cancelled caller never saw."""
        with self._lock:
            self._closed = True
            for work in self._held.values():
                if not work.remains.is_handed_in:
                    work.ledger.abandon(work.claim, sampled=work.remains.unparked, data_source=work.row.data_source)
            self._held.clear()

    def _attempt(self) -> Work | None:
        evaluation = self._buffer.evaluation() if self._held_out is not None else None
        self._spare(None if evaluation is None or evaluation.evaluates is None else evaluation.evaluates.server)
        if evaluation is not None and self._held_out is not None and self._has_room(evaluation, self._held_out):
            work = self._work(evaluation, evaluation.reserve(self._worker), self._held_out, "eval")
            if work is not None:
                return work
        answer = self._reserve()
        work = self._work(self._buffer, answer, self._train, "train")
        if work is not None:
            self.refusal = None
            return work
        assert isinstance(answer, NotAdmitted)
        self.refusal = answer
        if time.monotonic() - self._swept >= self._sweep_every_s:
            # Whoever is refused looks for the dead: what they held may be what the window waits for.
            self._swept = time.monotonic()
            self._buffer.sweep()
            if evaluation is not None:
                evaluation.sweep()
        return None

    def _reserve(self) -> Claim | NotAdmitted:
        if (curriculum := self._curriculum) is None:
            return self._buffer.reserve(self._worker)
        for _ in range(MOST_OFFERS):
            answer = self._buffer.reserve(self._worker, curriculum.offers())
            if isinstance(answer, Claim):
                curriculum.passed(0 if answer.draw is None else answer.draw.position + 1)
                break
            if answer.reason != DRAW:
                break
            curriculum.passed(answer.next_position)
        return answer

    def _has_room(self, evaluation: ReplayBuffer, prompts: Prompts) -> bool:
        """Without a server of its own an evaluation has all slots: the trainer waits for it."""
        if evaluation.evaluates is None or evaluation.evaluates.server is None:
            return True
        playing = sum(work.stream == "eval" for work in self._held.values()) * prompts.group_size
        return not playing or playing + prompts.group_size <= self._room_beside()

    def wake(self, deadline_s: float) -> bool:
        """Block until the ledger changed so that somebody may be admitted, or the deadline."""
        return self._hints.wait(deadline_s)

    def why(self) -> str:
        """The reason of the last refusal."""
        return "nothing was refused" if self.refusal is None else f"{self.refusal.reason}: {self.refusal.detail}"

    def _work(self, ledger: ReplayBuffer, answer: Claim | NotAdmitted, prompts: Prompts, stream: Stream) -> Work | None:
        if isinstance(answer, NotAdmitted):
            return None
        try:
            row = prompts.row(answer.ordinal, answer.draw)
        except BaseException:
            ledger.abandon(answer)  # the file is the matter, not the prompt
            raise
        size, kept = prompts.group_size, ledger.evaluates
        if kept is None or kept.server is None:
            return Work(ledger, answer, row, stream, size, prompts.with_baseline)
        return Work(ledger, answer, row, stream, size, version=kept.version, server=kept.server)
