"""How far one episode has come, at any moment between two steps of the event loop: what is parked, and continued from.

The environment is asked for a snapshot before each of the model's turns, and what is parked says where that turn
begins: an environment that is in the middle of an answer, with a tool running, is never looked into. The next owner
gives the turn to a restored environment again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from asyncrl.data.policies import GREEDY_BASELINE, SAMPLED
from asyncrl.envs.base import Reward
from asyncrl.inference.fleet import Session
from asyncrl.rollout.builder import TrajectoryBuilder
from buffer import Row, Trajectory, TrajectoryError
from buffer.partials import UNFINISHED, PartialEpisode

_TURN_START, _ANSWERED = "turn_start", "answered"


class Halted(Exception):
    """The episode was told to stop where it is; what it has is to be parked."""


@dataclass
class Progress:
    """One episode of a group.

    Attributes:
        builder: its tokens. Empty: not begun, or begun without a prompt yet.
        policy: what plays it; a name of asyncrl/data/policies.py.
        session: its requests at the servers.
        num_turns: turns that the environment has answered.
        turn_start: where the turn that is being sampled begins, in the current row.
        answered: how that turn ended (`stop`, `length`), once it is whole; None while it is sampled.
        state: the environment's snapshot of before that turn; None: it gave none.
        trajectory: the finished trajectory.
        is_resumed: it has tokens of another owner that have not been joined to an environment yet.
        is_halted: it asks for nothing more.
        num_restarts: times that it dropped its tokens and started over.
    """

    builder: TrajectoryBuilder = field(default_factory=TrajectoryBuilder)
    policy: str = SAMPLED
    session: Session = field(default_factory=Session)
    num_turns: int = 0
    turn_start: int = 0
    answered: str | None = None
    state: Mapping[str, object] | None = None
    trajectory: Trajectory | None = None
    is_resumed: bool = False
    is_halted: bool = False
    num_restarts: int = 0

    @property
    def is_baseline(self) -> bool:
        """Whether it is played greedily, for its reward alone."""
        return self.policy == GREEDY_BASELINE

    @property
    def num_sampled(self) -> int:
        """Sampled tokens so far."""
        return self.builder.num_sampled

    def next_turn(self, state: Mapping[str, object] | None) -> None:
        """The model's next turn begins here, with the environment as `state` says."""
        self.turn_start, self.answered, self.state = len(self.builder.token_ids), None, state

    def start_over(self) -> None:
        """Drop what was taken over: the episode begins at its prompt."""
        self.builder.clear()
        self.num_turns, self.turn_start, self.answered, self.state = 0, 0, None, None
        self.is_resumed = False
        self.num_restarts += 1

    def go_on(self) -> None:
        """Raise Halted if the episode was told to stop: asked before whatever takes time."""
        if self.is_halted:
            raise Halted

    def finish(
        self, reward: Reward, *, finish_reason: str, num_turns: int, extra_info: Mapping[str, object]
    ) -> Trajectory:
        """The finished trajectory.

        Raises:
            TrajectoryError: its parts contradict each other.
        """
        self.trajectory = self.builder.finish(
            reward, finish_reason=finish_reason, num_turns=num_turns, extra_info=extra_info, policy=self.policy
        )
        return self.trajectory

    def partial(self, index: int) -> PartialEpisode | None:
        """What is to be parked of it, as number `index` of its group; None: it has no sampled token."""
        if self.trajectory is not None:
            return PartialEpisode(index, self.trajectory, done=True)
        if not self.num_sampled:
            return None
        rows, info = self.builder.rows(), {_TURN_START: self.turn_start, _ANSWERED: self.answered}
        return PartialEpisode(index, _unfinished(rows, self.num_turns, info), done=False, state=self.state)

    def prompt_only(self, index: int) -> PartialEpisode:
        """Its prompt without anything sampled, to be parked in place of what nobody is to go on from."""
        begun = TrajectoryBuilder()
        begun.begin_row(self.builder.prompt_ids)
        info = {_TURN_START: len(begun.token_ids), _ANSWERED: None}
        return PartialEpisode(index, _unfinished(begun.rows(), 0, info), done=False)

    def take(self, parked: PartialEpisode) -> None:
        """Go on from what another owner parked.

        Raises:
            TrajectoryError: it does not say where its last turn begins.
        """
        self.builder.restore(parked.trajectory.rows)
        if parked.done:
            self.trajectory = parked.trajectory
            return
        start, answered = (parked.trajectory.extra_info.get(key) for key in (_TURN_START, _ANSWERED))
        if not isinstance(start, int) or not 0 < start <= len(self.builder.token_ids) or not _is_reason(answered):
            self.start_over()
            raise TrajectoryError(
                f"parked episode {parked.index}: its last turn begins at {start!r} and ended by {answered!r}, expected "
                f"a place among {len(parked.trajectory.rows[-1].token_ids)} tokens and stop, length or nothing."
            )
        self.num_turns, self.turn_start, self.state = parked.trajectory.num_turns, start, parked.state
        self.answered = None if answered is None else str(answered)
        self.is_resumed = True


def _unfinished(rows: tuple[Row, ...], num_turns: int, extra_info: Mapping[str, object]) -> Trajectory:
    return Trajectory(
        rows=rows,
        reward=None,
        reward_error=UNFINISHED,
        finish_reason="abort",
        num_turns=num_turns,
        extra_info=extra_info,
    )


def _is_reason(value: object) -> bool:
    return value is None or value in ("stop", "length")
