"""`a.b=c` on the command line -> dotted key and value, read by the same rules as a file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from asyncrl.load_config.yaml_reader import Json, Problem, read

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
SOURCE = "override"


@dataclass
class Overrides:
    """Dotted keys with their values, in the order they were given; what could not be read is in `problems`."""

    values: list[tuple[str, Json]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse(texts: Sequence[str]) -> Overrides:
    """Read overrides. A later one wins over an earlier one."""
    overrides = Overrides()
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not KEY.match(key):
            # Only the part before = is shown: what follows may be a secret.
            overrides.problems.append(Problem("", SOURCE, _malformed(key, bool(equals))))
            continue
        document = read(value, SOURCE)
        if document.problems:
            overrides.problems += [
                Problem(f"{key}.{problem.key}" if problem.key else key, SOURCE, problem.text)
                for problem in document.problems
            ]
            continue
        overrides.values.append((key, document.value))
    return overrides


def _malformed(key: str, has_value: bool) -> str:
    if not has_value:
        return f"{key!r} has no value; an override is written key=value, for example rollout.n=8"
    if key.startswith(("+", "~", "-")):
        return f"{key!r} is not a key; overrides are written without + ~ or --, for example rollout.n=8"
    return f"{key!r} is not a dotted key; an override is written key=value, for example rollout.n=8"
