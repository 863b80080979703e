"""What the buffer carries: trajectories and groups, which check themselves when they are made.

A group is the G trajectories of one ordinal. A trajectory is one episode: one or more rows (a context that was
rewritten or handed to a sub-agent starts a new row). A row is token ids with, per token, whether the policy sampled
it and with which logprob; spans say under which version of the weights the sampled tokens were drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType

from buffer.errors import TrajectoryError
from buffer.json_safe import integer, json_safe_map, number, short, shown, text
from buffer.row import ComparedByContent, Row
from buffer.versions import extremes

_MOST = (1 << 53) - 1
"""Largest count: what Lua's numbers, which are doubles, hold exactly."""
_EMPTY: Mapping[str, object] = MappingProxyType({})

FINISH_REASONS = ("stop", "length", "abort", "env")


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory(ComparedByContent):
    """One episode. A reward of None comes with `reward_error`: such a trajectory is masked and counted.

    Raises:
        TrajectoryError: no row, a reward that is not a number, a reward and an error at once, unknown finish reason,
            extra_info that is not JSON-safe.
    """

    rows: tuple[Row, ...]
    reward: float | None
    reward_error: str | None = None
    reward_parts: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    finish_reason: str = "stop"
    num_turns: int = 1
    policy: str = "policy"
    extra_info: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        put = object.__setattr__
        if self._is_plain():
            put(self, "reward_parts", _EMPTY)
            put(self, "extra_info", _EMPTY)
            return
        put(self, "rows", tuple(self.rows))
        if not self.rows or not all(isinstance(row, Row) for row in self.rows):
            raise TrajectoryError("Trajectory.rows must hold at least one Row.")
        if (self.reward is None) != (self.reward_error is not None):
            raise TrajectoryError(
                f"Trajectory.reward = {shown(self.reward)} and Trajectory.reward_error = {shown(self.reward_error)}: "
                "exactly one of the two is set."
            )
        if self.reward is not None:
            put(self, "reward", number("Trajectory.reward", self.reward))
        if self.reward_error is not None:
            put(self, "reward_error", text("Trajectory.reward_error", self.reward_error))
        if not isinstance(self.reward_parts, Mapping):
            found = type(self.reward_parts).__name__
            raise TrajectoryError(f"Trajectory.reward_parts must be a mapping of names to numbers, not {found}.")
        parts = {}
        for key, value in self.reward_parts.items():
            name = text("Trajectory.reward_parts key", key)
            parts[name] = number(f"Trajectory.reward_parts.{short(name)}", value)
        put(self, "reward_parts", MappingProxyType(parts) if parts else _EMPTY)
        if self.finish_reason not in FINISH_REASONS:
            raise TrajectoryError(
                f"Trajectory.finish_reason = {shown(self.finish_reason)} is not one of {', '.join(FINISH_REASONS)}."
            )
        put(self, "num_turns", integer("Trajectory.num_turns", self.num_turns))
        if not 0 <= self.num_turns <= _MOST:
            raise TrajectoryError(f"Trajectory.num_turns = {shown(self.num_turns)} must be in 0..{_MOST}.")
        put(self, "policy", text("Trajectory.policy", self.policy))
        put(self, "extra_info", json_safe_map("Trajectory.extra_info", self.extra_info))

    def _is_plain(self) -> bool:
        """Whether every field is in its only form already: what most trajectories are, at a quarter of the cost."""
        return (
            type(self.rows) is tuple
            and len(self.rows) == 1
            and type(self.rows[0]) is Row
            and type(self.reward) is float
            and isfinite(self.reward)
            and self.reward_error is None
            and self.finish_reason in FINISH_REASONS
            and type(self.num_turns) is int
            and 0 <= self.num_turns <= _MOST
            and type(self.policy) is str
            and self.policy.isascii()
            and self.reward_parts == _EMPTY
            and self.extra_info == _EMPTY
        )

    @property
    def num_sampled(self) -> int:
        return sum([span.num_tokens for row in self.rows for span in row.spans])

    @property
    def num_tokens(self) -> int:
        return sum([len(row.token_ids) for row in self.rows])


@dataclass(frozen=True, slots=True, eq=False)
class Group(ComparedByContent):
    """The trajectories of one ordinal, which enter and leave the buffer together.

    Raises:
        TrajectoryError: negative ordinal, attempt below 1, no trajectory, extra_info that is not JSON-safe.
    """

    ordinal: int
    attempt: int
    data_source: str
    trajectories: tuple[Trajectory, ...]
    extra_info: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, least in (("ordinal", 0), ("attempt", 1)):
            put(self, name, integer(f"Group.{name}", getattr(self, name)))
            if not least <= getattr(self, name) <= _MOST:
                raise TrajectoryError(f"Group.{name} = {shown(getattr(self, name))} must be in {least}..{_MOST}.")
        put(self, "data_source", text("Group.data_source", self.data_source))
        put(self, "trajectories", tuple(self.trajectories))
        if not self.trajectories or not all(isinstance(t, Trajectory) for t in self.trajectories):
            raise TrajectoryError("Group.trajectories must hold at least one Trajectory.")
        put(self, "extra_info", json_safe_map("Group.extra_info", self.extra_info))

    @property
    def gid(self) -> str:
        return f"{self.ordinal}.{self.attempt}"

    def number_ranges(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest number per branch, over the sampled tokens of all trajectories."""
        return extremes({span.version for t in self.trajectories for row in t.rows for span in row.spans})
