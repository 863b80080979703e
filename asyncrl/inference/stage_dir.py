"""The private folder through which a host gives weights to its server, best in memory."""

import hashlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

from asyncrl.errors import ConfigError, PreflightError

SHARED_MEMORY = Path("/dev/shm")


class StageDir:
    """A folder of this user's, one for each server of a run; what an earlier host left in it is removed.

    Each life of a started server gets a folder of its own inside, since a thread of the life before may still be
    writing; an adopted server knows one folder for ever. `shared` is the folder of all servers of the run on this
    machine, which weightsync makes and removes.
    """

    def __init__(self, path: Path, *, shared: Path, one_for_each_life: bool) -> None:
        self.path, self.shared, self._one_for_each_life = path, shared, one_for_each_life

    @classmethod
    def of_started(cls, base: str | None, run_dir: Path, server: str) -> "StageDir":
        """For a server that its host starts. `base`: weightsync.stage_dir, None: shared memory where there is some."""
        parent = Path(base) if base else SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        path = parent / f"{_run_name(run_dir)}-{server}"
        return cls(path, shared=_shared_dir(parent, run_dir), one_for_each_life=True)

    @classmethod
    def of_adopted(cls, base: str | None, run_dir: Path, server: str) -> "StageDir":
        """For a server that somebody else started with <weightsync.stage_dir>/<server> as its stage directory.

        Raises:
            ConfigError: weightsync.stage_dir is not set, so the two could not agree on a folder.
        """
        if base is None:
            raise ConfigError(
                "inference.urls is set but weightsync.stage_dir is not: a server that asyncrl does not start must know "
                f"where its weights will lie. Set weightsync.stage_dir to a folder on the server's machine, and start "
                f"the server with ASYNCRL_STAGE_DIR=<that folder>/{server} in its environment."
            )
        return cls(Path(base) / server, shared=_shared_dir(Path(base), run_dir), one_for_each_life=False)

    def open(self) -> None:
        """Make the folder, empty and closed to other users.

        Raises:
            PreflightError: it cannot be made, or belongs to somebody else, who could replace the weights.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_symlink() or (self.path.exists() and self.path.stat().st_uid != os.getuid()):
                raise PreflightError(
                    f"{self.path} is not ours: whoever made it could give the server other weights. Remove it, or set "
                    "weightsync.stage_dir to a folder that only you can write to."
                )
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise PreflightError(
                f"cannot make the stage directory {self.path}: {error}. Set weightsync.stage_dir to a folder with room "
                "for the model's weights."
            ) from error

    def for_life(self, incarnation: str) -> Path:
        """The folder of one life of the server."""
        if not self._one_for_each_life:
            return self.path
        path = self.path / incarnation
        path.mkdir(mode=0o700)
        return path

    def end_life(self, incarnation: str) -> None:
        """Remove the folder of a life that is over."""
        if self._one_for_each_life:
            shutil.rmtree(self.path / incarnation, ignore_errors=True)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)


def _run_name(run_dir: Path) -> str:
    """Runs may share their names, not their directories."""
    return f"asyncrl-{os.getuid()}-{hashlib.blake2b(str(run_dir.resolve()).encode(), digest_size=6).hexdigest()}"


def _shared_dir(parent: Path, run_dir: Path) -> Path:
    """With the machine's name: `parent` may be storage that machines share, and each brings its own."""
    return parent / f"{_run_name(run_dir)}-{socket.gethostname()}-shared"
