"""The part of a Dockerfile that can be carried out without containers: WORKDIR, ENV, and COPY from its directory.

Whatever would need the image's own programs or a network is refused by line, so that no task is played in a place that
its author did not mean.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from asyncrl.envs.harbor.workspace import WORKDIR, WorkspaceError

WITHOUT_EFFECT = frozenset({"FROM", "LABEL", "MAINTAINER", "EXPOSE", "CMD", "STOPSIGNAL", "SHELL"})
"""What changes nothing for commands that are run one by one with this machine's own programs."""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@dataclass
class Prepared:
    """What the file came to: where commands begin, their variables, and the lines that were left out."""

    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Line:
    place: str
    keyword: str
    rest: str


def prepare(dockerfile: Path, root: Path, *, skip_run: bool) -> Prepared:
    """Carry the file out, with `root` as the root of the file system. Files are copied from the file's directory.

    Args:
        skip_run: leave RUN lines out instead of refusing them.
    Raises:
        WorkspaceError: a line cannot be carried out; names file and line.
    """
    prepared = Prepared()
    for line in _lines(dockerfile):
        if line.keyword in WITHOUT_EFFECT:
            continue
        if line.keyword == "RUN" and skip_run:
            prepared.skipped.append(f"{line.place}: RUN {line.rest}")
        elif line.keyword == "WORKDIR":
            prepared.workdir = _absolute(_filled(line.rest, prepared.env), prepared.workdir)
            _inside(root, prepared.workdir, line).mkdir(parents=True, exist_ok=True)
        elif line.keyword == "ENV":
            prepared.env |= _variables(line, prepared.env)
        elif line.keyword == "COPY":
            _copy(line, dockerfile.parent, root, prepared)
        else:
            hint = " or, if this machine has what it installs, set rollout.harbor.skip_run"
            raise WorkspaceError(
                f"{line.place}: {line.keyword} needs a container. Set rollout.harbor.runner to docker"
                f"{hint if line.keyword == 'RUN' else ''}."
            )
    if prepared.workdir == "/":
        prepared.workdir = WORKDIR
        _inside(root, WORKDIR, None).mkdir(parents=True, exist_ok=True)
    return prepared


def _lines(path: Path) -> Iterator[_Line]:
    """Instructions, with continued lines joined."""
    number, begun, text = 0, 0, ""
    for number, raw in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue
        begun = begun if text else number
        text += stripped.removesuffix("\\").rstrip() + (" " if stripped.endswith("\\") else "")
        if not stripped.endswith("\\"):
            keyword, _, rest = text.partition(" ")
            yield _Line(f"{path} line {begun}", keyword.upper(), rest.strip())
            text = ""
    if text:
        raise WorkspaceError(f"{path} line {number}: the file ends within an instruction")


def _variables(line: _Line, env: Mapping[str, str]) -> dict[str, str]:
    words = _words(line)
    if words and "=" not in words[0]:
        return {words[0]: _filled(line.rest.partition(" ")[2].strip(), env)}
    pairs = [word.partition("=") for word in words]
    return {name: _filled(value, env) for name, _, value in pairs}


def _copy(line: _Line, context: Path, root: Path, prepared: Prepared) -> None:
    words = json.loads(line.rest) if line.rest.startswith("[") else _words(line)
    flags = [word for word in words if word.startswith("--")]
    places = [_filled(word, prepared.env) for word in words if not word.startswith("--")]
    if any(not flag.startswith(("--chown=", "--link")) for flag in flags) or len(places) < 2:
        raise WorkspaceError(f"{line.place}: COPY {line.rest} needs a container. Set rollout.harbor.runner to docker.")
    *sources, target = places
    found = [path for source in sources for path in _sources(line, context, source)]
    goal = _inside(root, _absolute(target, prepared.workdir), line)
    into = target.endswith("/") or len(found) > 1 or goal.is_dir()
    for path in found:
        if path.is_dir():
            shutil.copytree(path, goal, symlinks=True, dirs_exist_ok=True)
        else:
            destination = goal / path.name if into else goal
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, destination, follow_symlinks=False)


def _sources(line: _Line, context: Path, source: str) -> list[Path]:
    pattern = source.lstrip("/").removeprefix("./")
    if ".." in PurePosixPath(pattern).parts:
        raise WorkspaceError(f"{line.place}: COPY {source} leaves the directory of the Dockerfile")
    found = [context] if pattern in ("", ".") else sorted(context.glob(pattern))
    if not found:
        raise WorkspaceError(f"{line.place}: COPY {source}: there is no such file in {context}")
    return found


def _words(line: _Line) -> list[str]:
    try:
        return shlex.split(line.rest)
    except ValueError as error:
        raise WorkspaceError(f"{line.place}: {line.keyword} {line.rest}: {error}") from None


def _filled(text: str, env: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda match: env.get(match[1] or match[2], ""), text.strip("\"'"))


def _absolute(place: str, workdir: str) -> str:
    return str(PurePosixPath(workdir) / place)


def _inside(root: Path, place: str, line: _Line | None) -> Path:
    """A path of the workspace as one of this machine. Raises WorkspaceError if a `..` leaves it."""
    path = root / place.lstrip("/")
    if ".." in PurePosixPath(place).parts:
        raise WorkspaceError(f"{line.place if line else root}: {place} must not have .. in it")
    return path
