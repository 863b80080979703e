#!/usr/bin/env python3
"""A stand-in for the command line of Docker: a container is a directory that commands have as their root.

Knows what asyncrl/envs/harbor/docker.py calls: version, build, run, exec, cp, rm. Containers lie below
$HOME/fake_docker, images in $FAKE_IMAGES; every call is a line of the file `calls`. It builds what the runner `local`
can build.
"""

import json
import os
import shutil
import sys
from pathlib import Path

HOME = Path(os.environ["HOME"]) / "fake_docker"
IMAGES = Path(os.environ["FAKE_IMAGES"])
LOCAL = Path(__file__).resolve().parents[2] / "asyncrl/envs/harbor"


def options(arguments: list[str], with_value: set[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The options in front, and what follows them."""
    found: dict[str, list[str]] = {}
    while arguments and arguments[0].startswith("-"):
        name = arguments.pop(0)
        found.setdefault(name, []).append(arguments.pop(0) if name in with_value else "")
    return found, arguments


def build(arguments: list[str]) -> int:
    found, (context,) = options(arguments, {"--tag"})
    image = IMAGES / found["--tag"][0].replace(":", "_")
    if not image.with_suffix(".json").exists():
        from asyncrl.envs.harbor.dockerfile import prepare

        image.mkdir(parents=True, exist_ok=True)
        prepared = prepare(Path(context) / "Dockerfile", image, skip_run=True)
        image.with_suffix(".json").write_text(json.dumps({"workdir": prepared.workdir, "env": prepared.env}))
    print("sha256:0123")
    return 0


def run(arguments: list[str]) -> int:
    found, rest = options(arguments, {"--name", "--label", "--pids-limit", "--cpus", "--memory", "--network"})
    image = IMAGES / rest[0].replace(":", "_")
    if not image.is_dir():
        print(f"Unable to find image '{rest[0]}' locally", file=sys.stderr)
        return 125
    container = HOME / "containers" / found["--name"][0]
    shutil.copytree(image, container, symlinks=True)
    (container / "tmp").mkdir(exist_ok=True)
    shutil.copy(image.with_suffix(".json"), container.with_suffix(".json"))
    print("0123456789ab")
    return 0


def run_in(arguments: list[str]) -> int:
    found, (name, *command) = options(arguments, {"--env", "--user", "--workdir"})
    container = HOME / "containers" / name
    if not container.is_dir():
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    made = json.loads(container.with_suffix(".json").read_text())
    workdir = found.get("--workdir", [made["workdir"]])[0]
    env = {"PATH": os.environ["PATH"], **made["env"]}
    env |= {name: os.environ[name] for name in found.get("--env", []) if name in os.environ}
    namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL"]
    enter = ["sh", str(LOCAL / "enter.sh"), str(container), workdir, "unlimited", "unlimited"]
    os.execvpe(namespaces[0], [*namespaces, *enter, *command], env)


def cp(arguments: list[str]) -> int:
    source, target = arguments
    name, _, place = target.partition(":")
    shutil.copytree(source, HOME / "containers" / name / place.lstrip("/"), symlinks=True, dirs_exist_ok=True)
    return 0


def rm(arguments: list[str]) -> int:
    _, (name,) = options(arguments, set())
    container = HOME / "containers" / name
    if not container.is_dir():
        print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
        return 1
    shutil.rmtree(container)
    container.with_suffix(".json").unlink()
    return 0


def version(arguments: list[str]) -> int:
    print("Client:\n Version: 0")
    return 0


COMMANDS = {"version": version, "build": build, "run": run, "exec": run_in, "cp": cp, "rm": rm}


def main() -> int:
    name, *arguments = sys.argv[1:]
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "calls").open("a") as calls:
        calls.write(json.dumps([name, *arguments]) + "\n")
    return COMMANDS[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
