"""The admission model as a whole: its moves, what must hold, and what counts as progress."""

from collections.abc import Iterator

from tests.models.admission.state import LEASE, Setting, State, charged
from tests.models.admission.trainer import trainer_moves
from tests.models.admission.workers import worker_moves
from tests.models.explorer import Move


class AdmissionModel:
    """See `tests.models.explorer.Model`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.initial = State((), 0, 0, 0, 0, 0, LEASE, 0, setting.faults)

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Workers and servers, then the trainer."""
        yield from worker_moves(self.setting, state)
        yield from trainer_moves(self.setting, state)

    def canonical(self, state: State) -> State:
        """Nothing here has a name that could be another."""
        return state

    def problem(self, state: State) -> str | None:
        """What this state breaks."""
        used = charged(self.setting, state)
        # A dead letter that is played again comes back into the budget, whatever is in it by now.
        most = self.setting.max_groups + self.setting.faults.resubmits - state.faults.resubmits
        if self.setting.rules.credit and self.setting.rules.dead_cap and used > most:
            return f"{used} groups are charged to a budget of {self.setting.max_groups}"
        return None

    def is_goal(self, state: State) -> bool:
        """The trainer has trained all its versions."""
        return state.number >= self.setting.versions
