"""One group being played by a soak's producer: its tokens so far, by the clock, under the versions of the moment."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from buffer import Claim, Group, Span
from buffer.partials import PartialEpisode, Partials
from buffer.versions import effective, unpack
from tests.support.soak.content import DIGEST, trajectory
from tests.support.soak.settings import Prompt, Settings


@dataclass(slots=True)
class Play:
    """A claim and its group. begun_s: None until the servers are new enough for it."""

    settings: Settings
    claim: Claim
    prompt: Prompt
    renew_at_s: float
    begun_s: float | None = None
    park_at_s: float = 0.0
    parked_tokens: int = 0
    kept: tuple[int, ...] = ()
    """Tokens per episode that are parked now: they are not lost with this claim."""
    spans: list[list[tuple[int, int]]] = field(default_factory=list)
    """Per episode: (version, tokens)."""
    ended: bool = False

    def begin(self, now_s: float, partials: Partials | None) -> str:
        """Start, or go on from what was parked. Answers what is wrong with that; empty: nothing."""
        self.begun_s, self.park_at_s = now_s, now_s + self.settings.park_every_s
        self.spans = [[] for _ in self.prompt.lengths]
        if partials is None:
            return ""
        for episode in partials.episodes:
            found = episode.trajectory.rows[0].spans
            expected = trajectory(self.settings, self.prompt, episode.index, found)
            if episode.trajectory != expected or episode.state != _state(found):
                return f"{self.claim.gid}: parked episode {episode.index} is not what was parked"
            self.spans[episode.index] = [(span.version, span.num_tokens) for span in found]
        self.parked_tokens = sum(self.sampled)
        self.kept = self.sampled
        return ""

    @property
    def sampled(self) -> tuple[int, ...]:
        """Tokens per episode so far."""
        return tuple(sum(count for _, count in spans) for spans in self.spans)

    @property
    def lost(self) -> tuple[int, ...]:
        """Tokens per episode that nobody goes on from if the claim is given up now."""
        kept = self.kept or (0,) * len(self.spans)
        return tuple(now - before for now, before in zip(self.sampled, kept, strict=True))

    def sample(self, now_s: float, version: int) -> bool:
        """Sample what the clock says; whether the group is whole."""
        assert self.begun_s is not None
        left = 1 - self.parked_tokens / sum(self.prompt.lengths)
        share = min(1.0, (now_s - self.begun_s) / (left * self.prompt.seconds + 1e-9))
        whole = True
        for spans, length in zip(self.spans, self.prompt.lengths, strict=True):
            have = sum(count for _, count in spans)
            new = max(1 if not have else 0, int(length * share) - have)
            if new and spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1] + new)
            elif new:
                spans.append((version, new))
            whole = whole and have + new == length
        return whole

    def oldest(self) -> int | None:
        """The version to report: the one farthest from the claim's branch."""
        versions = {version for spans in self.spans for version, _ in spans}
        return min(versions, key=self._effective) if versions else None

    def _effective(self, version: int) -> int:
        branch, number = unpack(version)
        return number if branch >= self.claim.branch else effective(number, self.claim.commons.get(branch, 0))

    def group(self) -> Group:
        """The whole group."""
        trajectories = tuple(
            trajectory(self.settings, self.prompt, index, _spans(spans)) for index, spans in enumerate(self.spans)
        )
        return Group(self.claim.ordinal, self.claim.attempt, self.prompt.data_source, trajectories)

    def partials(self) -> Partials | None:
        """What there is to park."""
        episodes = []
        for index, spans in enumerate(self.spans):
            if spans:
                so_far = trajectory(self.settings, self.prompt, index, _spans(spans))
                done = sum(count for _, count in spans) == self.prompt.lengths[index]
                episodes.append(PartialEpisode(index, so_far, done, _state(so_far.rows[0].spans)))
        return Partials(tuple(episodes)) if episodes else None


def _spans(spans: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    return tuple(Span(version, DIGEST, count) for version, count in spans)


def _state(spans: Sequence[Span]) -> dict[str, object] | None:
    """The snapshot of an environment that has one now and then."""
    count = sum(span.num_tokens for span in spans)
    return {"turns": count} if count % 2 else None
