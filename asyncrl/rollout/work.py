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
    """

    ledger: ReplayBuffer
    claim: Claim
    row: PromptRow
    stream: Stream
    group_size: int
    has_baseline: bool = False
    remains: Remains = field(default_factory=Remains)
