"""What a worker has reserved: a claim with its prompt, and what giving it back would lose."""

from dataclasses import dataclass, field

from asyncrl.data.rows import PromptRow
from asyncrl.rollout.seeds import Stream
from buffer import ReplayBuffer
from buffer.answers import Claim


@dataclass
class Remains:
    """What is left of a claim whose play was cancelled.

    Attributes:
        unparked: tokens of each episode that nobody else has.
        is_handed_in: the group is in, or on its way; the claim is not to be given back.
    """

    unparked: tuple[int, ...] = ()
    is_handed_in: bool = False


@dataclass(frozen=True)
class Work:
    """A claim with its prompt. `ledger` is the run's, or that of the evaluation that the claim is of.

    Attributes:
        group_size: episodes that are sampled.
        has_baseline: one more is played greedily.
        version, server: the packed version that all of it is to be sampled from, and who is kept there and plays it.
            None: whoever the claim allows.
    """

    ledger: ReplayBuffer
    claim: Claim
    row: PromptRow
    stream: Stream
    group_size: int
    has_baseline: bool = False
    version: int | None = None
    server: str | None = None
    remains: Remains = field(default_factory=Remains)

    def may_start_on(self, version: int) -> bool:
        """Whether a packed version may sample for it."""
        return self.claim.may_start_on(version) if self.version is None else version == self.version
