"""Check of the environment that episodes are played in: it is there, and what it needs of this machine, too."""

import asyncio
from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.doctor.finding import Finding
from asyncrl.envs.lookup import find_environment
from asyncrl.errors import ConfigError

FIX = "See docs/environments.md."


def check_environment(config: Config) -> Iterator[Finding]:
    """A row of the table or code of your own; a class with `check` is asked what it finds here."""
    name = config.rollout.environment
    try:
        make = find_environment(name)
    except ConfigError as error:
        yield Finding("environment", False, str(error), FIX)
        return
    check = getattr(make, "check", None)
    if check is None:
        yield Finding("environment", True, name)
        return
    try:
        yield Finding("environment", True, f"{name}: {asyncio.run(check(config.rollout))}")
    except Exception as error:  # the environment may be anybody's code
        yield Finding("environment", False, f"{name}: {error}", FIX)
