"""A workspace in a container, by the command line of Docker or of what is called like it (podman)."""

import asyncio
import hashlib
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncrl import waits
from asyncrl.data.harbor_tasks import HarborTask
from asyncrl.envs.harbor.process import run_program
from asyncrl.envs.harbor.workspace import Ran, WorkspaceError
from asyncrl.envs.resources import Resources

STEP_S = 60.0
"""Seconds for starting, copying and removing."""
GRACE_S = 10.0
PIDS = 1024
EMPTY = """
set -eu
IFS=/
path=
for part in ${1#/}; do
    path="$path/$part"
    [ -d "$path" ] && [ ! -L "$path" ] || { rm -rf "$path"; mkdir "$path"; }
done
rm -rf "$1"
mkdir "$1"
"""
"""Script that has $1 be an empty directory, whatever the agent has put in its way."""
_KILLED = frozenset({124, 137})  # of timeout(1): by its own code, or by the signal that it sent


class DockerWorkspace:
    """One container, of the task's image or of the one that is built from its Dockerfile."""

    def __init__(self, task: HarborTask, program: str, life_s: float, resources: Resources) -> None:
        """
        Args:
            life_s: seconds after which the container ends by itself, so that none stays when its worker is killed.
            resources: images are built once for all episodes that share it.
        """
        self._task, self._program, self._life_s, self._resources = task, program, life_s, resources
        self._container: str | None = None
        self._is_started = False

    async def start(self) -> None:
        """Build the image if nobody has, and start a container that does nothing."""
        task = self._task
        image = task.environment.docker_image or await self._built()
        limits = ["--pids-limit", str(PIDS)]
        if task.environment.cpus is not None:
            limits += ["--cpus", f"{task.environment.cpus:g}"]
        if task.memory_mb is not None:
            limits += ["--memory", f"{task.memory_mb:.0f}m"]
        if not task.has_network:
            limits += ["--network", "none"]
        # Named before it is there, so that it can be removed also if we are cancelled while it is started.
        self._container = f"asyncrl-{uuid.uuid4().hex}"
        run = ["run", "--detach", "--rm", "--init", "--name", self._container, "--label", "asyncrl=harbor", *limits]
        await self._docker([*run, image, "sleep", f"{self._life_s:.0f}"], task.environment.build_timeout_sec)
        self._is_started = True

    async def run(self, command: str, timeout_s: float, env: Mapping[str, str], user: str | int | None) -> Ran:
        """See Workspace. The image must have `bash` and `timeout`: the end of `docker exec` here is none there."""
        workdir = self._task.environment.workdir
        options = [option for name in env for option in ("--env", name)]  # the value comes from our own environment
        options += [] if user is None else ["--user", str(user)]
        options += [] if workdir is None else ["--workdir", workdir]
        inside = ["timeout", "-s", "KILL", f"{timeout_s:.3f}", "bash", "-c", command]
        begun = time.monotonic()
        ran = await run_program(
            [self._program, "exec", *options, self._existing(), *inside], timeout_s + GRACE_S, _own(env)
        )
        if ran.exit_code in _KILLED and time.monotonic() - begun >= timeout_s:
            return Ran(ran.output, None)
        return ran

    async def put(self, directory: Path | None, place: str) -> None:
        """See Workspace."""
        await self._inside(EMPTY, place)
        if directory is not None:
            await self._docker(["cp", f"{directory}/.", f"{self._existing()}:{place}"], STEP_S)

    async def read(self, place: str, max_bytes: int) -> bytes | None:
        """See Workspace."""
        ran = await run_program(
            [
                *(self._program, "exec", "--user", "0", self._existing(), "sh", "-c"),
                *('[ -f "$1" ] && [ ! -L "$1" ] || exit 44; head -c "$2" "$1"', "sh", place, str(max_bytes)),
            ],
            STEP_S,
            _own({}),
        )
        if ran.exit_code == 44:
            return None
        if ran.exit_code != 0:
            raise WorkspaceError(f"{place} cannot be read from the container: {ran.output.strip()[-300:]}")
        return ran.output.encode()

    async def close(self) -> None:
        """Remove the container with all that runs in it."""
        container, self._container = self._container, None
        if container is not None:
            await asyncio.shield(self._remove(container))

    async def _remove(self, container: str) -> None:
        try:
            await self._docker(["rm", "--force", container], STEP_S)
        except WorkspaceError:
            if self._is_started:
                raise

    async def _built(self) -> str:
        """The image of the task's Dockerfile: one build for a state of environment/, however many episodes want it."""
        task = self._task
        if task.dockerfile is None:
            raise WorkspaceError(f"{task.directory} has neither environment.docker_image nor environment/Dockerfile")
        digest = await waits.in_thread(_digest, task.dockerfile.parent)
        image = await self._resources.get(f"image of {task.directory} {digest}", lambda: self._build(digest))
        return image.tag

    async def _build(self, digest: str) -> "_Image":
        assert self._task.dockerfile is not None
        tag = f"asyncrl-harbor:{digest}"
        build = ["build", "--quiet", "--tag", tag, str(self._task.dockerfile.parent)]
        await self._docker(build, self._task.environment.build_timeout_sec)
        return _Image(tag)

    async def _inside(self, script: str, *arguments: str) -> None:
        await self._docker(["exec", "--user", "0", self._existing(), "sh", "-c", script, "sh", *arguments], STEP_S)

    async def _docker(self, arguments: Sequence[str], timeout_s: float) -> str:
        ran = await run_program([self._program, *arguments], timeout_s, _own({}))
        if ran.exit_code != 0:
            why = f"exit code {ran.exit_code}" if ran.exit_code is not None else f"not done after {timeout_s:g} s"
            raise WorkspaceError(f"{self._program} {arguments[0]}: {why}: {ran.output.strip()[-500:]}")
        return ran.output

    def _existing(self) -> str:
        if self._container is None:
            raise WorkspaceError(f"the container of {self._task.name} is not there")
        return self._container


async def check_program(program: str) -> None:
    """Refuse a machine on which containers cannot be made.

    Raises:
        WorkspaceError: there is no such program, or nothing that answers it.
    """
    ran = await run_program([program, "version"], STEP_S, _own({}))
    if ran.exit_code != 0:
        raise WorkspaceError(
            f"{program} version fails here ({ran.output.strip()[-200:]}). Start its service, or set "
            "rollout.harbor.program or runner."
        )


class _Image:
    """An image stays where it was built, for the next run."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    async def close(self) -> None:
        """Nothing to give back."""


def _own(env: Mapping[str, str]) -> dict[str, str]:
    """What the command line of Docker may see of our environment, and the values that it hands on."""
    kept = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY")
    return {**{name: os.environ[name] for name in (*kept, "XDG_RUNTIME_DIR") if name in os.environ}, **env}


def _digest(directory: Path) -> str:
    """Of the names, modes and contents of all files below."""
    seen = hashlib.blake2b(digest_size=10)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            blob = path.read_bytes()
            seen.update(f"{path.relative_to(directory)}\0{path.stat().st_mode:o}\0{len(blob)}\0".encode() + blob)
    return seen.hexdigest()
