"""Which prompt an ordinal stands for, where that depends on results: drawn once, at reserve, and read ever after.

A run's order of prompts is a line of positions. A worker offers some of them, in order, each with the reason why its
prompt is to be played next; the ledger takes the first that nobody has passed yet. So each position is drawn at most
once, whichever worker asks, and whoever was slow offers again from where the others have come to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from buffer.errors import BufferError

MOST_OFFERED = 64
"""Draws that one reserve may offer."""
MAX_REASON = 200
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Draw:
    """position: place in the run's order of prompts. prompt: its index in the data set. reason: one line, for people.

    Raises:
        BufferError: a number is negative, or the reason is longer than MAX_REASON or has several lines.
    """

    position: int
    prompt: int
    reason: str

    def __post_init__(self) -> None:
        if self.position < 0 or self.prompt < 0:
            raise BufferError(f"a draw at position {self.position} of prompt {self.prompt}: neither may be negative.")
        if not self.reason or len(self.reason) > MAX_REASON or len(self.reason.splitlines()) != 1:
            raise BufferError(
                f"the reason of a draw has {len(self.reason)} characters in {len(self.reason.splitlines())} lines: "
                f"wanted one line of 1 to {MAX_REASON}."
            )

    def to_text(self) -> str:
        """As the ledger keeps it."""
        return f"{self.position} {self.prompt} {self.reason}"

    @classmethod
    def from_text(cls, text: bytes | str) -> "Draw":
        """The inverse of to_text. Raises BufferError: it is something else."""
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        position, _, rest = shown.partition(" ")
        prompt, _, reason = rest.partition(" ")
        if not (position.isascii() and position.isdecimal() and prompt.isascii() and prompt.isdecimal()):
            raise BufferError(f"the ledger holds {shown[:80]!r} as a draw, wanted a position, a prompt and a reason.")
        return cls(int(position), int(prompt), reason)


@dataclass(frozen=True, slots=True)
class PassRate:
    """The newest result of a prompt: of `scored` trajectories with a reward, `passed` reached the mark."""

    passed: int
    scored: int
    ordinal: int
    """Whose group it was."""

    @property
    def share(self) -> float:
        """Passed of scored, in [0, 1]."""
        return self.passed / self.scored

    @classmethod
    def from_text(cls, text: bytes | str) -> "PassRate":
        """As lua/shared/moves.lua writes it. Raises BufferError: it is something else."""
        parts = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text).split(" ")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise BufferError(f"the ledger holds {text[:80]!r} as a pass rate, wanted three whole numbers.")
        return cls(*map(int, parts))


@dataclass(frozen=True, slots=True)
class Result:
    """What a group says of its prompt; see PassRate."""

    prompt: int
    passed: int
    scored: int


NO_RESULT = Result(-1, 0, 0)
"""Of a group whose prompt was not drawn, or none of whose trajectories has a reward."""


def first_open(offered: Sequence[Draw], next_position: int) -> Draw | None:
    """The first draw that nobody has passed, or None: offer again from `next_position` on."""
    return next((draw for draw in offered if draw.position >= next_position), None)


def check_offered(offered: Sequence[Draw]) -> None:
    """Refuse what the ledger could not choose from.

    Raises:
        BufferError: too many draws, or not in the order of their positions.
    """
    positions = [draw.position for draw in offered]
    if len(offered) > MOST_OFFERED or positions != sorted(set(positions)):
        raise BufferError(
            f"a reserve offers at most {MOST_OFFERED} draws, each at a later position than the one before; got "
            f"{len(offered)} at {positions[:10]}."
        )
