"""Choose dead letters by ordinal, by reason or all, act on them, and say what was asked for and not found."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from buffer import ReplayBuffer
from buffer.answers import DeadLetter


@dataclass(frozen=True)
class Choice:
    """Which letters are meant: these ordinals, else those with this reason, else all."""

    ordinals: tuple[int, ...] = ()
    reason: str | None = None

    def of(self, letters: Sequence[DeadLetter]) -> list[DeadLetter]:
        """The chosen ones, by ordinal."""
        if self.ordinals:
            return [letter for letter in letters if letter.ordinal in self.ordinals]
        return [letter for letter in letters if self.reason is None or letter.reason == self.reason]


@dataclass(frozen=True)
class Acted:
    """What was done.

    Attributes:
        done: ordinals that were acted on.
        unchanged: chosen ordinals that are dead, and for which there was nothing to do.
        unknown: ordinals that were named and are not dead.
        reasons: of all letters before: reason -> how many.
    """

    done: tuple[int, ...]
    unchanged: tuple[int, ...]
    unknown: tuple[int, ...]
    reasons: Counter[str]

    def to_json(self) -> dict[str, Any]:  # plain data for json.dump
        """Plain data."""
        return {
            "done": list(self.done),
            "unchanged": list(self.unchanged),
            "unknown": list(self.unknown),
            "reasons": dict(self.reasons),
        }


def act(
    buffer: ReplayBuffer, choice: Choice, action: Callable[[Iterable[int]], tuple[int, ...]], *, needs_payload: bool
) -> Acted:
    """Act on the chosen letters. The buffer acts on each once; a repeat finds nothing to do.

    Args:
        needs_payload: letters without one are left as they are.
    """
    letters = buffer.dead_letters()
    chosen = choice.of(letters)
    meant = [letter.ordinal for letter in chosen if letter.entry is not None or not needs_payload]
    done = action(meant) if meant else ()
    return Acted(
        done=tuple(sorted(done)),
        unchanged=tuple(letter.ordinal for letter in chosen if letter.ordinal not in done),
        unknown=tuple(sorted(set(choice.ordinals) - {letter.ordinal for letter in letters})),
        reasons=Counter(letter.reason for letter in letters),
    )
