"""A home of version logs, of either kind, that can lose its tail: `save` and `rewind` what it knows of versions."""

import shutil
from pathlib import Path
from typing import Any

from tests.support.model_publish import dump, restore
from tests.support.redis_server import RedisServer
from weightsync.log import VersionLog, open_log
from weightsync.log.files import safe_name

RUN = "run"


class LogHome:
    """Every `open` is another client, as another process would be."""

    def __init__(self, root: Path, server: RedisServer | None) -> None:
        """A directory log under `root`, or one in `server` under a run's name of its own."""
        self.root, self.server = root, server
        self.run = RUN if server is None else f"{RUN}-{root}"
        self._opened: list[VersionLog] = []

    def open(self) -> VersionLog:
        home = str(self.root) if self.server is None else self.server.url
        self._opened.append(open_log(home, self.run))
        return self._opened[-1]

    def save(self) -> Any:  # of either kind
        """What the log knows of versions and owner now."""
        if self.server is not None:
            return dump(self.server, self.run)
        kept = self.root / f"kept-{len(list(self.root.glob('kept-*')))}"
        shutil.copytree(self.root / safe_name(self.run) / "log", kept)
        return kept

    def rewind(self, saved: Any) -> None:
        """Lose what came after `save`; servers and needs stay."""
        if self.server is not None:
            restore(self.server, self.run, saved)
            return
        folder = self.root / safe_name(self.run) / "log"
        for name in ("records", "anchors", "merged", "digests"):
            shutil.rmtree(folder / name)
            shutil.copytree(saved / name, folder / name)
        for name in ("head", "owner"):
            (folder / name).unlink(missing_ok=True)
            if (saved / name).exists():
                shutil.copy(saved / name, folder / name)

    def close(self) -> None:
        for log in self._opened:
            log.close()
