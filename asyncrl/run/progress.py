"""Read the lines that a growing metrics.jsonl gains, for the progress view."""

import json
from pathlib import Path
from typing import Any


class MetricsTail:
    """Follows a file from where it ends now; a torn last line is read when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[dict[str, Any]]:
        """The complete lines written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            self._offset = min(self._offset, size)  # a resumed trainer cuts a torn line off
            file.seek(self._offset)
            block = file.read(size - self._offset)
        complete, newline, _ = block.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return [json.loads(line) for line in complete.split(b"\n") if line]
