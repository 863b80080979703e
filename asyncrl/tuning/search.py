"""Try settings: a table of predictions over limit, policy, steps per version and the split of devices."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from asyncrl.errors import ConfigError
from asyncrl.tuning.prediction import Prediction, warm_up_steps
from asyncrl.tuning.profile import Profile, Setting
from asyncrl.tuning.simulator import simulate

EPISODES = 6_000
"""Episodes that one setting is simulated with, at least: a minute for a hundred settings."""
FEWEST_STEPS = 12


@dataclass(frozen=True)
class Row:
    """A setting and what it would come to."""

    setting: Setting
    prediction: Prediction


def settings(
    base: Setting,
    *,
    limits: Sequence[int],
    policies: Sequence[Literal["wait", "drop"]],
    steps_per_version: Sequence[int],
    splits: Sequence[tuple[int, int]],
) -> list[Setting]:
    """Every combination; a split is (servers, ranks). Slots grow with the servers, so that each has as many as now."""
    return [
        base.model_copy(
            update={
                "limit": limit,
                "policy": policy,
                "steps_per_version": steps,
                "servers": servers,
                "ranks": ranks,
                "slots": max(1, round(base.slots * servers / base.servers)),
            }
        )
        for limit, policy, steps, (servers, ranks) in product(limits, policies, steps_per_version, splits)
        # With limit 0 no group in flight can be too old at the next lease: both policies are the same.
        if not (limit == 0 and policy == "drop")
    ]


def splits_of(
    devices: int, devices_per_server: int, devices_per_rank: int = 1, *, most: int = 6
) -> list[tuple[int, int]]:
    """Ways to share out devices: (servers, ranks), evenly spaced if there are more than `most`. Some may be left over.

    Raises:
        ConfigError: they do not reach for one server and one rank.
    """
    found = [
        (servers, (devices - servers * devices_per_server) // devices_per_rank)
        for servers in range(1, (devices - devices_per_rank) // devices_per_server + 1)
    ]
    if not found:
        raise ConfigError(
            f"{devices} devices are too few for one server of {devices_per_server} and one rank of {devices_per_rank} "
            f"that trains. Give at least {devices_per_server + devices_per_rank}."
        )
    step = max(1.0, (len(found) - 1) / (most - 1))
    return sorted({found[min(round(i * step), len(found) - 1)] for i in range(min(most, len(found)))})


def search(
    profile: Profile,
    tried: Iterable[Setting],
    *,
    steps: int | None = None,
    seed: int = 0,
    progress: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Simulate each setting with the same prompts.

    Args:
        steps: counted steps of each; None: as many as make `EPISODES`.
        progress: told each row when it is there.
    """
    rows = []
    for setting in tried:
        counted = steps or _counted_steps(profile, setting)
        row = Row(setting, simulate(profile, setting, steps=warm_up_steps(setting) + counted, seed=seed))
        progress(row)
        rows.append(row)
    return rows


def _counted_steps(profile: Profile, setting: Setting) -> int:
    """Whole versions, so that no setting is looked at in the middle of one."""
    per_step = profile.workload.groups_per_step * profile.workload.group_size
    versions = -(-max(FEWEST_STEPS, -(-EPISODES // per_step)) // setting.steps_per_version)
    return versions * setting.steps_per_version
