"""What is compared: how old the groups are, what corrects for it, and whether late groups are waited for or dropped."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal

Policy = Literal["wait", "drop"]


@dataclass(frozen=True)
class Task:
    """What is learned, as overrides of configs/tiny_cpu.yaml.

    Attributes:
        tokens_per_version: sampled tokens of one answer in the time that a version takes. Under `drop` a group with a
            longer answer than it has versions for is dropped; under `wait` the trainer waits for it. None: no group is
            ever late, and the two policies are one.
        stops_early: demonstrations of the warm start that are wrong are the beginning of the right answer: what is
            fast is wrong. Otherwise they are the starter's decoys, as long as the right answer.
    """

    name: str
    overrides: tuple[str, ...]
    tokens_per_version: int | None = None
    stops_early: bool = False


@dataclass(frozen=True)
class Condition:
    """One way of training.

    Attributes:
        eta: versions between the weights that sample a group and those that are trained on it, exactly.
        method: a row of METHODS.
        policy: what happens to a group that is not ready in time.
    """

    eta: int
    method: str
    policy: Policy = "wait"

    @property
    def name(self) -> str:
        """`eta4_tis`, `eta4_tis_drop`."""
        return f"eta{self.eta}_{self.method}" + ("" if self.policy == "wait" else f"_{self.policy}")


METHODS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "naive": ("algorithm.correction=none",),
        "tis": ("algorithm.correction=tis",),
        "tis_sequence": ("algorithm.correction=tis_sequence",),
        "icepop": ("algorithm.correction=icepop",),
        "decoupled": ("algorithm.name=decoupled_ppo", "algorithm.proximal=loglinear"),
        "m2po": ("algorithm.name=m2po", "actor.clip_ratio_low=null", "actor.clip_ratio_high=null"),
        "behaviour_clip": ("algorithm.correction=none", "algorithm.bypass=true"),
    }
)
"""Corrections by name, as overrides. naive trains on stale groups as if their sampler were the trained policy, and
behaviour_clip is PPO of two policies, clipped around the sampler; the others weigh, mask or select by the distance."""

_SMALL = ("schedule.groups_per_step=16", "rollout.n=8")

SORT = Task("sort", (*_SMALL, "trainer.steps=120", "actor.lr=2.0e-4", "actor.lr_decay=linear"))
HARD = Task("hard", (*_SMALL, "trainer.steps=120", "actor.lr=3.0e-4"))
SLOW = Task(
    "slow",
    (
        *(*_SMALL, "trainer.steps=120", "actor.lr=2.0e-4", "actor.lr_decay=linear"),
        *("starter.task.max_digits=7", "rollout.max_new_tokens=9"),
    ),
    tokens_per_version=3,
    stops_early=True,
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in (SORT, HARD, SLOW)})


@dataclass(frozen=True)
class Part:
    """A block of a study: every lag with every method and policy on one task."""

    task: Task
    etas: tuple[int, ...]
    methods: tuple[str, ...]
    policies: tuple[Policy, ...] = ("wait",)

    def conditions(self) -> list[Condition]:
        """Every combination; fresh groups are never late, so that eta 0 has one policy."""
        return [
            Condition(eta, method, policy)
            for eta in self.etas
            for method in self.methods
            for policy in (self.policies if eta else self.policies[:1])
        ]


DEFAULT = (Part(SORT, (0, 4, 8), ("naive", "tis")),)
FULL = (
    Part(HARD, (0, 1, 2, 4, 8, 16, 64), tuple(METHODS)),
    Part(SLOW, (0, 1, 2, 4), ("tis",), ("wait", "drop")),
)
"""hard: no decay of a learning rate at which eta 0 still learns. slow: only what fits into the time is trained on."""


def fingerprint(task: Task, condition: Condition, extra: Sequence[str]) -> str:
    """Eight hex digits of all settings of a run: results of other settings are never mixed with these."""
    settings = [asdict(task), asdict(condition), METHODS[condition.method], list(extra)]
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=4).hexdigest()
