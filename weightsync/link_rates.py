"""Which form of a version is in the engines first: changes or whole words, by the rates that were measured.

A rank encodes while it sends, so a form is there after the slower of the two; then it is applied while the engine
stands still. Changes cost encoding, few bytes and what was changed; whole words cost a seal, a digest and all bytes on
both sides. Where few words changed changes win, on any link; with half of them changed, and a fast link, whole ones do.
Pure arithmetic: the rank's own apply stands for the engines', which do the same work.
"""

from dataclasses import dataclass
from typing import Literal

Form = Literal["changes", "whole"]

_NEWEST = 0.3  # weight of a new measurement against those before it
_CLEARLY = 0.95  # nearer than this two versions of one form are not: then it is the one of fewer bytes


@dataclass
class _Mean:
    """A moving mean; None before the first measurement."""

    value: float | None = None

    def note(self, measured: float) -> None:
        self.value = measured if self.value is None else self.value + _NEWEST * (measured - self.value)


class LinkRates:
    """Of one rank and its transport. Not thread-safe."""

    def __init__(self) -> None:
        self._encode: dict[Form, _Mean] = {"changes": _Mean(), "whole": _Mean()}
        self._apply: dict[Form, _Mean] = {"changes": _Mean(), "whole": _Mean()}
        self._size = _Mean()
        self._send = _Mean()

    def note_encoded(self, form: Form, words_bytes: int, frame_bytes: int, seconds: float) -> None:
        """A bucket of `words_bytes` became a frame of `frame_bytes` (0: no word changed)."""
        self._encode[form].note(seconds / words_bytes)
        if form == "changes":
            self._size.note(frame_bytes / words_bytes)

    def note_sent(self, num_bytes: int, seconds: float) -> None:
        """The transport took parts of so many bytes in so many seconds of sending."""
        if num_bytes:
            self._send.note(seconds / num_bytes)

    def note_applied(self, form: Form, words_bytes: int, seconds: float) -> None:
        """A bucket of `words_bytes` became what a frame of this form makes of it: checks, copying or adding, digest."""
        self._apply[form].note(seconds / words_bytes)

    def knows(self, form: Form) -> bool:
        """Was the encoding of this form measured?"""
        return self._encode[form].value is not None

    def seconds_a_byte(self, form: Form) -> float | None:
        """Predicted seconds for each byte of words; None while a rate is unknown."""
        encode, send, size = self._encode[form].value, self._send.value, self._size.value
        if encode is None or send is None or size is None:
            return None
        apply = self._apply[form].value
        if apply is None:  # encoding whole words is a copy and a digest, as applying them is
            apply = encode if form == "whole" else 0.0
        return max(encode, send * (size if form == "changes" else 1.0)) + apply

    def faster(self) -> Form:
        """The form for the next version; changes while a rate is unknown."""
        changes, whole = self.seconds_a_byte("changes"), self.seconds_a_byte("whole")
        if changes is None or whole is None:
            return "changes"
        return "whole" if whole < _CLEARLY * changes else "changes"
