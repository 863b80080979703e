"""What the processes of a soak did: one line an event in one file, which outlives whoever wrote it."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class Journal:
    """Appends events of one process. A line is one write, so those of several processes do not mix."""

    def __init__(self, path: Path, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"at_s": round(time.monotonic(), 3), "who": self.who, "what": what, **facts}) + "\n"
        os.write(self._file, line.encode())


class Reader:
    """Follows the file, and counts what happened by name."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.counts: Counter[str] = Counter()
        self.by_who: Counter[tuple[str, str]] = Counter()
        """(who, what) -> how often."""
        self.violations: list[str] = []

    def follow(self) -> None:
        """Read what was written since the last call."""
        for event in self._new():
            self.counts[event["what"]] += 1
            self.by_who[event["who"], event["what"]] += 1
            if event["what"] == "violation":
                self.violations.append(f"{event['who']}: {event['problem']}")

    def events(self) -> Iterator[Event]:
        """All events from the beginning."""
        if self._path.exists():
            with self._path.open("rb") as file:
                yield from (json.loads(line) for line in file)

    def _new(self) -> list[Event]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
