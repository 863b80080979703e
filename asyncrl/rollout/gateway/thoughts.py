"""The thoughts that an answer begins with, apart from what it says."""

from asyncrl.data.thoughts import THOUGHT_CLOSE, THOUGHT_OPEN


class ThoughtSplitter:
    """Splits an answer that comes in pieces of any size. Only a thought at the beginning is one."""

    def __init__(self, *, in_thought: bool = False) -> None:
        """in_thought: the prompt ends with the opening of a thought, so the answer begins inside of it."""
        self._in_thought, self._is_decided, self._held, self._skips_space = in_thought, in_thought, "", False

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain now: (of the thought, of what is said after it), each maybe empty."""
        self._held += text
        if not self._is_decided and not self._decide():
            return "", ""
        return self._split(is_end=False)

    def close(self) -> tuple[str, str]:
        """What was held back: the answer has ended."""
        self._is_decided = True
        return self._split(is_end=True)

    def _decide(self) -> bool:
        begun = self._held.lstrip()
        if begun.startswith(THOUGHT_OPEN):
            self._in_thought, self._held = True, begun[len(THOUGHT_OPEN) :]
        elif THOUGHT_OPEN.startswith(begun):
            return False
        self._is_decided = True
        return True

    def _split(self, *, is_end: bool) -> tuple[str, str]:
        if not self._in_thought:
            return "", self._said(self._held)
        end = self._held.find(THOUGHT_CLOSE)
        if end >= 0:
            thought, said = self._held[:end], self._held[end + len(THOUGHT_CLOSE) :]
            self._in_thought, self._skips_space = False, True
            return thought, self._said(said)
        keep = 0 if is_end else num_begun((THOUGHT_CLOSE,), self._held)
        thought, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return thought, ""

    def _said(self, text: str) -> str:
        self._held = ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        return text


def num_begun(markers: tuple[str, ...], text: str) -> int:
    """Characters at the end of a text that one of the markers begins with: they may become it."""
    longest = max(map(len, markers), default=1) - 1
    return next((n for n in range(min(longest, len(text)), 0, -1) if _begins_one(markers, text[-n:])), 0)


def _begins_one(markers: tuple[str, ...], end: str) -> bool:
    return any(len(end) < len(marker) and marker.startswith(end) for marker in markers)
