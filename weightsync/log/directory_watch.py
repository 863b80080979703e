"""Waiting for hints that are files: looked at while somebody waits, at most five times a second."""

import threading
from collections.abc import Collection
from pathlib import Path
from time import monotonic

_HINT_RECHECK_S = (0.01, 0.2)


class DirectoryWatch:
    """A place among the hints: what the topics' files were when last looked at."""

    def __init__(self, folder: Path, topics: Collection[str], closed: threading.Event) -> None:
        self._files = [folder / topic for topic in topics]
        self._closed = closed
        self._seen = self._look()

    def wait(self, deadline_s: float) -> bool:
        """Look until a file changed, or the deadline; closing the log ends it."""
        end = monotonic() + deadline_s
        pause_s, longest_s = _HINT_RECHECK_S
        while True:
            found = self._look()
            if found != self._seen:
                self._seen = found
                return True
            left = end - monotonic()
            if left <= 0 or self._closed.wait(min(pause_s, left)):
                return False
            pause_s = min(2 * pause_s, longest_s)

    def _look(self) -> list[tuple[int, int]]:
        found = []
        for file in self._files:
            try:
                stat = file.stat()
            except FileNotFoundError:
                found.append((0, 0))
            else:
                # The inode too: two renames within one tick of the clock differ in it.
                found.append((stat.st_ino, stat.st_mtime_ns))
        return found
