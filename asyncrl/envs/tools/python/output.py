"""What a process printed: the beginning and the end of it, in bounded memory."""


class Output:
    """Keeps `kept` bytes, half of them from the beginning; after MANY times as many it wants no more."""

    MANY = 64

    def __init__(self, kept: int) -> None:
        self._half = kept // 2
        self.most = kept * self.MANY
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._head, self._tail = bytearray(), bytearray()
        self._taken = 0

    @property
    def is_over(self) -> bool:
        """Whether more was printed than it wants."""
        return self._taken > self.most

    def take(self, chunk: bytes) -> bool:
        """Keep what there is room for. False: it was too much."""
        self._taken += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self._half:  # seldom: cutting moves the rest
            del self._tail[: -self._half]
        return not self.is_over

    def text(self) -> str:
        """It as text; what is missing in the middle is said there, and bytes that are no text are shown as such."""
        tail = self._tail[-self._half :]
        missing = self._taken - len(self._head) - len(tail)
        head = self._head.decode("utf-8", "replace")
        if not missing:
            return (self._head + tail).decode("utf-8", "replace")
        return f"{head}\n[{missing} bytes of output left out]\n{tail.decode('utf-8', 'replace')}"
