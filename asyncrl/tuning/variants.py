"""The variants of a sweep: every combination of the values that keys are given, each with several seeds."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from asyncrl.errors import ConfigError

SEED = "run.seed"
OWN = ("run.dir", "run.name", SEED)
"""Keys that a sweep sets for each variant itself."""
READABLE = 60


@dataclass(frozen=True)
class Variant:
    """One run of a sweep.

    Attributes:
        choice: key -> value of the keys that have several.
        fixed: overrides that all variants share.
        seed: run.seed; variants with the same one get the same prompts in the same order.
    """

    choice: tuple[tuple[str, str], ...]
    fixed: tuple[str, ...]
    seed: int

    @property
    def label(self) -> str:
        """The choice, for people; the same for all seeds."""
        return " ".join(f"{key}={value}" for key, value in self.choice) or "as configured"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Everything that differs from the file, apart from where the run lies."""
        return (*self.fixed, *(f"{key}={value}" for key, value in self.choice), f"{SEED}={self.seed}")

    @property
    def name(self) -> str:
        """Of its directory and of its run: readable, and another one as soon as any override is another."""
        digest = hashlib.sha256(json.dumps(self.overrides).encode()).hexdigest()[:8]
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.label.replace("=", "-"))[:READABLE].strip("-.")
        return f"s{self.seed}-{digest}" if not self.choice else f"{readable[: 64 - 20]}-s{self.seed}-{digest}"


def variants_of(overrides: Sequence[str], *, seeds: Sequence[int]) -> list[Variant]:
    """All variants: the seeds of one choice follow each other.

    Args:
        overrides: `key=value`, or `key=a,b` for one variant each; a comma within brackets belongs to its value.
        seeds: run.seed of each repetition.
    Raises:
        ConfigError: no `key=value`, a key twice, an empty value, or a key that the sweep sets itself.
    """
    choices: dict[str, list[str]] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{text!r} is no key=value: write for example staleness.limit=1,2,4")
        if key in OWN:
            raise ConfigError(f"{key} is set by the sweep for each variant: leave it out, and give --seeds or --dir.")
        if key in choices:
            raise ConfigError(f"{key} is given twice: write all its values behind one {key}=, with commas between.")
        choices[key] = _split(value)
        if "" in choices[key]:
            raise ConfigError(f"{text!r} has an empty value: nothing would be overridden by it. Leave it out.")
    several = {key: values for key, values in choices.items() if len(values) > 1}
    fixed = tuple(f"{key}={values[0]}" for key, values in choices.items() if len(values) == 1)
    return [
        Variant(tuple(zip(several, combination, strict=True)), fixed, seed)
        for combination in product(*several.values())
        for seed in seeds
    ]


def _split(value: str) -> list[str]:
    """The parts between commas that are in no bracket."""
    parts, depth = [""], 0
    for char in value:
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]
