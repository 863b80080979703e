"""Settings of a soak, and what becomes of each of its prompts: all of it follows from the seed."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from buffer import BufferConfig, PayloadConfig, ReplayBuffer, StalenessConfig

RUN = "soak"
MAX_GROUP_BYTES = 1 << 20
SPILL_BYTES = 200_000
POLICIES: tuple[dict[str, Any], ...] = (
    {"policy": "wait", "wait_deadline_s": 2.0},
    {"policy": "drop", "cancel_doomed": True},
    {"policy": "wait", "wait_deadline_s": 2.0, "order": "ordinal"},
    {"policy": "drop", "on_stale": "discard"},
    {"policy": "wait", "wait_deadline_s": 2.0, "max_stale": 1},
)
"""Staleness settings; the seed picks one."""

FATES = {
    "filter": 6,
    "too_large": 1,
    "always_fails": 1,
    "fails_once": 4,
    "abandons_once": 3,
    "no_reward": 3,
    "large": 6,
    "straggler": 4,
    "train": 72,
}
"""What happens to the prompts of each hundred, and to how many."""
POISON_EVERY, POISON_FIRST = 997, 30
"""Ordinals that kill every trainer that gets them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every process of a soak is told.

    work: the directory of its files. url: of the server. seed: of the schedule, the prompts and the policy.
    """

    work: Path
    url: str
    seed: int
    num_producers: int = 8
    slots: int = 2
    group_size: int = 4
    groups_per_step: int = 3
    steps_per_version: int = 2
    limit: int = 2
    checkpoint_every: int = 3
    claim_s: float = 2.0
    renew_every_s: float = 0.5
    park_every_s: float = 0.4
    lease_wait_s: float = 60.0
    """A trainer without a batch for so long means that the run is stuck."""

    @property
    def groups_per_version(self) -> int:
        return self.groups_per_step * self.steps_per_version

    @property
    def staleness(self) -> StalenessConfig:
        return StalenessConfig(**POLICIES[self.seed % len(POLICIES)])

    @property
    def config(self) -> BufferConfig:
        payload = PayloadConfig(
            home=f"file://{self.spilled}",
            spill_bytes=SPILL_BYTES,
            compress_bytes=100_000 if self.seed % 2 else None,
        )
        return BufferConfig(
            claim_s=self.claim_s,
            renew_every_s=self.renew_every_s,
            max_bytes=14 * MAX_GROUP_BYTES,  # less than the window's worth: bytes refuse now and then
            max_group_bytes=MAX_GROUP_BYTES,
            max_dead_bytes=4 * MAX_GROUP_BYTES,
            retry_s=10.0,
            payload=payload,
        )

    def connect(self) -> ReplayBuffer:
        """A process's own door to the buffer."""
        return ReplayBuffer.connect(self.url, RUN, self.config, self.staleness)

    @property
    def spilled(self) -> Path:
        return self.work / "spilled"

    @property
    def checkpoints(self) -> Path:
        return self.work / "checkpoints"

    @property
    def journal(self) -> Path:
        return self.work / "journal.jsonl"

    @property
    def head(self) -> Path:
        """The version that the inference servers have."""
        return self.work / "head"

    @property
    def halt(self) -> Path:
        """There while a trainer that has opened its branch is to stop there and then (SIGSTOP)."""
        return self.work / "halt"

    @property
    def draining(self) -> Path:
        """There once no new prompt is to be started."""
        return self.work / "draining"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an ordinal stands for. lengths: sampled tokens per trajectory; seconds: how long its group is played."""

    ordinal: int
    fate: str
    num_prompt_tokens: int
    lengths: tuple[int, ...]
    rewards: tuple[float | None, ...]
    seconds: float
    data_source: str


def prompt(settings: Settings, ordinal: int) -> Prompt:
    """The prompt of an ordinal."""
    rng = np.random.default_rng([settings.seed, ordinal])
    fate = "poison" if ordinal % POISON_EVERY == POISON_FIRST else _fates(settings.seed, ordinal // 100)[ordinal % 100]
    median, seconds = {"large": (16_000, 0.15), "too_large": (40_000, 0.1), "straggler": (1500, 1.5)}.get(
        fate, (400, 0.06)
    )
    spread = 0.05 if fate == "too_large" else 0.8
    most = MAX_GROUP_BYTES // (9 * settings.group_size) if fate != "too_large" else 1 << 20
    lengths = np.clip(rng.lognormal(np.log(median), spread, settings.group_size), 1, most)
    rewards: list[float | None] = [float(reward) for reward in rng.integers(0, 2, settings.group_size)]
    if fate == "no_reward":
        rewards[int(rng.integers(settings.group_size))] = None
    return Prompt(
        ordinal=ordinal,
        fate=fate,
        num_prompt_tokens=int(rng.integers(1, 200)),
        lengths=tuple(int(length) for length in lengths),
        rewards=tuple(rewards),
        seconds=float(np.clip(rng.lognormal(np.log(seconds), 0.8), 0.005, 4.0)),
        data_source=("arithmetic", "proofs")[ordinal % 2],
    )


@lru_cache(maxsize=64)
def _fates(seed: int, hundred: int) -> tuple[str, ...]:
    fates = [fate for fate, count in FATES.items() for _ in range(count)]
    assert len(fates) == 100
    return tuple(np.random.default_rng([seed, 1 << 20, hundred]).permutation(fates).tolist())
