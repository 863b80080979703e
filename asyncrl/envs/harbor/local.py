"""A workspace without containers: a directory as the root of namespaces, in which this machine's programs run.

For development, and for tasks whose programs this machine has. Commands see the workspace, the machine's programs and
no file, process or network of it besides; enter.sh says how.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG

from asyncrl import waits
from asyncrl.data.harbor_tasks import HarborTask
from asyncrl.envs.harbor.dockerfile import Prepared, prepare
from asyncrl.envs.harbor.process import run_program
from asyncrl.envs.harbor.workspace import TESTS, VERIFIER_LOGS, WORKDIR, Ran, WorkspaceError

log = logging.getLogger(__name__)

NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork")
KILL_CHILD = "--kill-child=SIGKILL"
ENTER = Path(__file__).with_name("enter.sh")
PROGRAMS = ("unshare", "mount", "chroot", "setpriv", "bash")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MEMORY_MB, FILE_MB = 4096.0, 1024.0
"""Address space of a process, and largest file, where the task says nothing."""
_PROBE_S = 10.0


class LocalWorkspace:
    """One directory below the system's directory for temporary files."""

    def __init__(self, task: HarborTask, *, skip_run: bool) -> None:
        self._task, self._skip_run = task, skip_run
        self._root: Path | None = None
        self._prepared = Prepared(WORKDIR)
        self._one_at_a_time = asyncio.Lock()  # a command may make links while another's view is built along its paths

    async def start(self) -> None:
        """Make the directory and carry out what can be of the Dockerfile."""
        if self._task.agent.user not in (None, "root", 0) or self._task.verifier.user not in (None, "root", 0):
            raise WorkspaceError(
                f"{self._task.directory}: user needs a container. Set rollout.harbor.runner to docker."
            )
        self._root = Path(tempfile.mkdtemp(prefix="asyncrl-harbor-"))
        await waits.in_thread(self._make, self._root)

    async def run(self, command: str, timeout_s: float, env: Mapping[str, str], user: str | int | None) -> Ran:
        """See Workspace. There is one user, root within the namespaces, who is nobody special outside of them."""
        root, environment = self._existing(), self._task.environment
        memory_kb = int((self._task.memory_mb or MEMORY_MB) * 1024)
        file_blocks = int((environment.storage_mb or environment.storage or FILE_MB) * 2048)  # of 512 bytes
        workdir = environment.workdir or self._prepared.workdir
        arguments = [*NAMESPACES, KILL_CHILD, "sh", str(ENTER), str(root), workdir, str(memory_kb), str(file_blocks)]
        own = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb"}
        async with self._one_at_a_time:
            return await run_program(
                [*arguments, "bash", "-c", command], timeout_s, {**own, **self._prepared.env, **env}
            )

    async def put(self, directory: Path | None, place: str) -> None:
        """See Workspace."""
        root = self._existing()
        try:
            await waits.in_thread(_fill, root, place, directory)
        except (OSError, shutil.Error) as error:
            raise WorkspaceError(f"{place} cannot be filled: {error}") from error

    async def read(self, place: str, max_bytes: int) -> bytes | None:
        """See Workspace. No link is followed: the agent may have made one to a file of this machine."""
        return await waits.in_thread(_read, self._existing(), place, max_bytes)

    async def close(self) -> None:
        """Remove the directory. Processes are gone already: none outlives its command."""
        root, self._root = self._root, None
        if root is not None:
            await asyncio.shield(waits.in_thread(_remove, root))

    def _existing(self) -> Path:
        if self._root is None:
            raise WorkspaceError(f"the workspace of {self._task.name} is not there")
        return self._root

    def _make(self, root: Path) -> None:
        try:
            for place in ("tmp", "root", "var/tmp", WORKDIR, TESTS, VERIFIER_LOGS):
                (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
            if self._task.dockerfile is not None:
                self._prepared = prepare(self._task.dockerfile, root, skip_run=self._skip_run)
            if self._task.environment.workdir is not None:
                (root / self._task.environment.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError, shutil.Error) as error:
            raise WorkspaceError(f"{self._task.directory}: the workspace cannot be made: {error}") from error


async def check_namespaces() -> None:
    """Refuse a machine that does not let commands be kept apart from it.

    Raises:
        WorkspaceError: a program is missing, or the kernel permits no namespaces.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise WorkspaceError(f"the runner local needs {', '.join(missing)}, which this machine does not have")
    tried = await run_program([*NAMESPACES, "mount", "-t", "tmpfs", "none", "/tmp"], _PROBE_S, {"PATH": PATH})
    if tried.exit_code != 0:
        raise WorkspaceError(
            f"the kernel permits no namespaces here ({tried.output.strip()[:200]}), so that commands could not be kept "
            "from this machine. Set rollout.harbor.runner to docker, or permit user namespaces."
        )


def _fill(root: Path, place: str, directory: Path | None) -> None:
    """A copy of the directory at `place`. The agent may have put links on the way there, which lead anywhere."""
    path = root
    for part in Path(place.lstrip("/")).parent.parts:
        path = path / part
        if path.is_symlink() or not path.is_dir():
            _remove(path)
            path.mkdir()
    path = path / Path(place).name
    _remove(path)
    if directory is None:
        path.mkdir()
    else:
        shutil.copytree(directory, path, symlinks=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_make_writable)  # onexc is new in Python 3.12
    else:
        path.unlink(missing_ok=True)


def _make_writable(function: object, path: str, info: object) -> None:
    """A directory that an agent made read-only is in the way of nobody; what else cannot be removed is logged."""
    place = Path(path)
    try:
        place.parent.chmod(0o700)
        if place.is_dir() and not place.is_symlink():
            place.chmod(0o700)
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s of a workspace was not removed: %s", path, error)


def _read(root: Path, place: str, max_bytes: int) -> bytes | None:
    path = root
    for part in Path(place.lstrip("/")).parts:
        path = path / part
        if path.is_symlink():
            return None
    try:
        if not S_ISREG(path.lstat().st_mode):
            return None
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError:
        return None
