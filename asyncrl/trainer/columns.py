"""What an advantage estimator may look at besides rewards, by the names of its keyword arguments.

B are trajectories, T their sampled tokens, the contexts of each joined. All of it is detached, of the weights at the
start of the step, on the CPU, 0 where it is not known. A new column is a function and a line in COLUMNS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.masking import inside
from asyncrl.trainer.start import StartOfStep


@dataclass(frozen=True)
class Column:
    """How a column is made, and whether it is known of trained tokens only (or of whole trajectories)."""

    make: Callable[[StartOfStep, Algorithm], Tensor]
    per_token: bool = True


def _of_tokens(fact: Callable[[StartOfStep], Tensor]) -> Column:
    """A column of what is known of each trained token."""
    return Column(lambda start, _: start.joined.place(fact(start)))


def _weights(start: StartOfStep, algorithm: Algorithm) -> Tensor:
    """[B, T] float32, importance weights of the algorithm's correction, 0 where it rejects; 1 without a correction."""
    mask_JS = start.joined.trained_JS
    if algorithm.correction is None:
        return mask_JS.float()
    logprobs_JS, sampler_JS = (COLUMNS[name].make(start, algorithm) for name in ("logprobs_BT", "sampler_BT"))
    found = algorithm.correction(logprobs_JS, sampler_JS, mask_JS)
    return inside(found.weights_BT, found.keep_BT)


def _components(start: StartOfStep, algorithm: Algorithm) -> Tensor:
    """[K, B] float64, parts of the reward in the order of their names; NaN where a trajectory has none of that name."""
    del algorithm
    members = [trajectory for group in start.batch.groups for trajectory in group.trajectories]
    names = sorted({name for trajectory in members for name in trajectory.reward_parts})
    rows = [[trajectory.reward_parts.get(name, torch.nan) for trajectory in members] for name in names]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(names), len(members))


def _baselines(start: StartOfStep, algorithm: Algorithm) -> Tensor:
    """[B] float64, reward of the greedy answer to the same prompt, as it was scored; NaN where there is none."""
    del algorithm
    return torch.from_numpy(start.batch.trajectories.baselines_J)


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        # [B, T] float32 all of them. Nats: of the policy, of the frozen reference, and as recorded in sampling.
        "logprobs_BT": _of_tokens(lambda start: start.logprobs_N),
        "reference_BT": _of_tokens(lambda start: start.reference_N),
        "sampler_BT": _of_tokens(lambda start: torch.from_numpy(start.batch.sampler_N)),
        # Nats, of the first teacher that scored the token's row; NaN where none did.
        "teacher_BT": _of_tokens(lambda start: start.teacher_N),
        # In units of reward, of the critic: what is still to come before each token.
        "values_BT": _of_tokens(lambda start: start.values_N),
        # Sum over the vocabulary of the policy's squared probabilities.
        "sum_pi_squared_BT": _of_tokens(lambda start: start.sum_pi_squared_N),
        "weights_BT": Column(_weights),
        "baselines_B": Column(_baselines, per_token=False),
        "components_KB": Column(_components, per_token=False),
    }
)


def needs_critic(algorithm: Algorithm) -> bool:
    """Whether the algorithm's advantages are made with a critic."""
    return "values_BT" in algorithm.columns


def needs_reference(algorithm: Algorithm) -> bool:
    """Whether anything in the algorithm compares with the frozen reference model."""
    return algorithm.kl_coef > 0 or algorithm.reward_kl is not None or "reference_BT" in algorithm.columns
