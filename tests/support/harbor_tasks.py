"""Harbor task directories as `harbor init` writes them, for tests: a file has to be made in /app."""

import asyncio
from functools import cache
from pathlib import Path

from asyncrl.envs.harbor.local import check_namespaces
from asyncrl.envs.harbor.workspace import WorkspaceError

TOML = """
schema_version = "1.1"

[task]
name = "tests/{name}"

[metadata]
difficulty = "easy"
category = "programming"

[verifier]
timeout_sec = {verifier_s}

[agent]
timeout_sec = 120.0

[environment]
build_timeout_sec = 60.0
cpus = 1
memory_mb = 2048
storage_mb = 64
{environment}
"""
DOCKERFILE = """
FROM python:3.13-slim
# what the agent finds
WORKDIR /app
ENV GREETING=hello \\
    OTHER="two words"
COPY start.txt data/ ./
COPY --chown=1000:1000 data /srv/data
"""
TEST_SH = """#!/bin/bash
if [ "$(cat /app/answer.txt 2>/dev/null)" = "42" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def write_task(
    root: Path,
    name: str = "make-a-file",
    *,
    test_sh: str = TEST_SH,
    dockerfile: str = DOCKERFILE,
    environment: str = "",
    verifier_s: float = 30.0,
) -> Path:
    """A task directory below `root`."""
    directory = root / name
    for folder in ("environment/data/deep", "tests", "solution"):
        (directory / folder).mkdir(parents=True)
    (directory / "task.toml").write_text(TOML.format(name=name, environment=environment, verifier_s=verifier_s))
    (directory / "instruction.md").write_text("Write 42 to the file answer.txt.\n")
    (directory / "environment/Dockerfile").write_text(dockerfile)
    (directory / "environment/start.txt").write_text("start\n")
    (directory / "environment/data/one.txt").write_text("1\n")
    (directory / "environment/data/deep/two.txt").write_text("2\n")
    (directory / "tests/test.sh").write_text(test_sh)
    (directory / "solution/solve.sh").write_text("echo 42 > /app/answer.txt\n")
    return directory


@cache
def namespaces_are_permitted() -> bool:
    """Whether the runner `local` works on this machine."""
    try:
        asyncio.run(check_namespaces())
    except WorkspaceError:
        return False
    return True
