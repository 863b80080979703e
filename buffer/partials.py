"""What a worker parks of an unfinished group, so that the ordinal's next owner goes on from its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from buffer.errors import CorruptPayload, TrajectoryError
from buffer.json_safe import integer, json_safe_map
from buffer.trajectory import Group, Trajectory

UNFINISHED = "unfinished"
"""reward_error of a trajectory that is not finished."""

_KEY = "parked"


@dataclass(frozen=True, slots=True)
class PartialEpisode:
    """One episode of the group.

    index: its place in the group, from 0. trajectory: its tokens so far; of an unfinished one reward is None and
    reward_error UNFINISHED. state: snapshot of its environment, JSON-safe; None: there is none.
    Raises:
        TrajectoryError: the parts contradict each other, or `state` is not JSON-safe.
    """

    index: int
    trajectory: Trajectory
    done: bool
    state: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", integer("PartialEpisode.index", self.index))
        if self.index < 0:
            raise TrajectoryError(f"PartialEpisode.index = {self.index} must be at least 0.")
        if type(self.done) is not bool:
            raise TrajectoryError(f"PartialEpisode.done is a {type(self.done).__name__}, expected true or false.")
        if self.done == (self.trajectory.reward_error == UNFINISHED):
            raise TrajectoryError(
                f"PartialEpisode.done = {self.done} and reward_error = {self.trajectory.reward_error!r}: an "
                f"episode that is not done has reward_error {UNFINISHED!r}, a done one has not."
            )
        if self.state is not None:
            object.__setattr__(self, "state", json_safe_map("PartialEpisode.state", self.state))


@dataclass(frozen=True, slots=True)
class Partials:
    """The episodes of one group that have tokens, by index.

    Raises:
        TrajectoryError: there is none, or two have the same index.
    """

    episodes: tuple[PartialEpisode, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "episodes", tuple(sorted(self.episodes, key=lambda episode: episode.index)))
        indexes = [episode.index for episode in self.episodes]
        if not indexes or len(set(indexes)) < len(indexes):
            raise TrajectoryError(f"Partials.episodes have the indexes {indexes}: expected at least one, each once.")

    @property
    def num_sampled(self) -> int:
        """Sampled tokens of all episodes."""
        return sum(episode.trajectory.num_sampled for episode in self.episodes)

    def to_group(self, ordinal: int, attempt: int, data_source: str) -> Group:
        """As a group, which is how they travel: the wire knows one form."""
        marks = [[e.index, e.done, None if e.state is None else dict(e.state)] for e in self.episodes]
        trajectories = tuple(episode.trajectory for episode in self.episodes)
        return Group(ordinal, attempt, data_source, trajectories, MappingProxyType({_KEY: marks}))


def partials_of(group: Group) -> Partials:
    """The inverse of `Partials.to_group`.

    Raises:
        CorruptPayload: it was not made by `to_group`.
    """
    marks = group.extra_info.get(_KEY)
    if not isinstance(marks, list) or len(marks) != len(group.trajectories):
        raise CorruptPayload(f"the payload of group {group.gid} holds a group where parked episodes are expected.")
    try:
        return Partials(
            tuple(
                PartialEpisode(index, trajectory, done, state)
                for (index, done, state), trajectory in zip(marks, group.trajectories, strict=True)
            )
        )
    except (TypeError, ValueError) as error:
        raise CorruptPayload(f"the parked episodes of group {group.gid} contradict themselves: {error}") from error
