"""A server's parts files: brought once for all servers of the machine where that works, else by each server alone."""

import logging
import secrets
from pathlib import Path

from weightsync.path_writer import Parts, PathWriter, Step
from weightsync.shared_stage import CannotShare, SharedStage, names_in
from weightsync.transport.base import Deadline

logger = logging.getLogger(__name__)


class Bringer:
    """Brings steps into one server's stage directory. For one thread at a time; any may `close` it meanwhile."""

    def __init__(
        self, writer: PathWriter, key: bytes | None, stage_dir: Path, shared_dir: Path | None, server: str
    ) -> None:
        self._writer, self._key, self._stage_dir, self._server = writer, key, stage_dir, server
        self._shared: SharedStage | None = None
        self._name = ""
        if shared_dir is not None:
            try:
                self._shared = SharedStage(shared_dir, server)
            except CannotShare as error:
                self._go_alone(error)

    def bring(self, step: Step, deadline: Deadline) -> Parts:
        """The step's parts file in the stage directory. Raises as `PathWriter.write`."""
        self._name = step.content_name(self._key)
        shared = self._shared
        if shared is not None:
            try:
                parts = shared.bring(
                    self._name,
                    self._stage_dir,
                    lambda folder, name: self._writer.write(step, folder, name, deadline),
                    deadline,
                )
                if parts is not None:
                    return parts
            except CannotShare as error:
                self._go_alone(error)
        name = f"parts-{self._name}-{secrets.token_hex(4)}.bin"
        return self._writer.write(step, self._stage_dir, name, deadline)

    def tidy(self, parts: Parts) -> None:
        """Remove what no ticket names, now that this server's names `parts`."""
        for old in names_in(self._stage_dir):
            if old.startswith("parts-") and old.endswith(".bin") and old != parts.name:
                (self._stage_dir / old).unlink(missing_ok=True)
        shared = self._shared
        if shared is not None:
            try:
                shared.sweep(self._name)
            except CannotShare as error:
                self._go_alone(error)

    def distrust(self) -> None:
        """The engine refused what was brought last: no other server shall get the same file."""
        shared = self._shared
        if shared is not None and self._name:
            shared.forget(self._name)

    def close(self) -> None:
        """Share nothing any more."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _go_alone(self, error: CannotShare) -> None:
        logger.warning("weightsync: %s brings its weights alone from here on: %s", self._server, error)
        self.close()
