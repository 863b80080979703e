"""Episodes against a generator and environments that follow a script."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Message, Reward, StepResult
from asyncrl.inference.fleet import Generated, Session
from asyncrl.inference.protocol import Sampling
from asyncrl.rollout.episode import EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.progress import Halted, Progress
from buffer import Span, Trajectory, wire
from buffer.partials import PartialEpisode, Partials, partials_of
from tests.support.char_chat import CharChat
from tests.support.episode_settings import episode_settings

SETTINGS = episode_settings(max_turns=3)
ROW = PromptRow(0, "test", ({"role": "user", "content": "1234"},), None, {})


class ScriptedFleet:
    """Gives the answers of a script, all under one version; an exception in it is raised.

    With `halts` that episode is told to stop while the last answer of the script is on its way.
    """

    def __init__(self, *script: Any, version: int = 7) -> None:
        self.script = deque(script)
        self.version = version
        self.halts: Progress | None = None
        self.asked: list[tuple[list[int], Sampling]] = []
        self.sessions: set[int] = set()

    async def generate(
        self, token_ids: Sequence[int], sampling: Sampling, *, session: Session, may_start_on: Callable[[int], bool]
    ) -> Generated:
        self.asked.append((list(token_ids), sampling))
        self.sessions.add(id(session))
        step = self.script.popleft()
        if self.halts is not None and not self.script:
            self.halts.is_halted = True
        if isinstance(step, Exception):
            raise step
        ids, finish = step
        spans = (Span(self.version, 10 * self.version, len(ids)),) if ids else ()
        return Generated(tuple(ids), (-0.5,) * len(ids), finish, spans, "server-0")

    async def cut(self, session: Session) -> None:
        raise AssertionError("nothing is in flight")


class ScriptedEnvironment:
    """Says the messages of a script, then ends with a reward. It cannot be put back to after a turn."""

    def __init__(self, *replies: str) -> None:
        self.replies = deque(replies)
        self.heard: list[tuple[str, str]] = []
        self.seed: int | None = None

    async def reset(self, row: PromptRow, *, seed: int) -> tuple[Message, ...]:
        self.seed = seed
        return row.messages

    async def step(self, text: str, finish_reason: str) -> StepResult:
        self.heard.append((text, finish_reason))
        if self.replies:
            return StepResult(messages=({"role": "user", "content": self.replies.popleft()},))
        return StepResult(done=True, reward=Reward(0.5, None, {"part": 1.0}, answer="6"))


class ResumableEnvironment(ScriptedEnvironment):
    """As scripted, and can be put back."""

    def snapshot(self) -> Mapping[str, object] | None:
        return {"left": list(self.replies)}

    async def restore(self, row: PromptRow, *, seed: int, state: Mapping[str, object]) -> tuple[Message, ...]:
        left = state["left"]
        assert isinstance(left, list)
        self.replies = deque(str(reply) for reply in left)
        return await self.reset(row, seed=seed)


class Play:
    """One episode with its parts at hand."""

    def __init__(
        self,
        *script: Any,
        replies: tuple[str, ...] = (),
        environment: ScriptedEnvironment | None = None,
        version: int = 7,
        **settings: Any,
    ) -> None:
        self.chat, self.fleet = CharChat(), ScriptedFleet(*script, version=version)
        self.environment = environment or ScriptedEnvironment(*replies)
        self.player = EpisodePlayer(self.chat, self.fleet, lambda: self.environment, replace(SETTINGS, **settings))
        self.task = EpisodeTask(ROW, "train", ordinal=3, episode=1, may_start_on=lambda version: True)

    async def run(self, progress: Progress | None = None) -> Trajectory:
        """Play to the end, from the beginning or from `progress`."""
        return await self.player.play(self.task, progress or Progress(), PromptMemo())

    async def parked(self) -> PartialEpisode:
        """Play until the script has nothing more, and park: as the next owner reads it."""
        progress = self.fleet.halts = Progress()
        with pytest.raises(Halted):
            await self.run(progress)
        return travelled(progress)


def travelled(progress: Progress) -> PartialEpisode:
    """What is parked of an episode, after a way through the buffer."""
    partial = progress.partial(1)
    assert partial is not None
    raw = wire.encode(Partials((partial,)).to_group(3, 1, "test"))
    (parked,) = partials_of(wire.decode(raw, max_bytes=1 << 20)).episodes
    return parked


def taken_over(parked: PartialEpisode) -> Progress:
    """An episode of the next owner."""
    progress = Progress()
    progress.take(parked)
    return progress
