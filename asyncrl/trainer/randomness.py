"""Every random source of a rank: seeded anew for each step, and saved with checkpoints."""

import random
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

_MIX = 0x9E3779B97F4A7C15  # odd, so that neighbouring steps get seeds far apart
_SEEDS = 1 << 63


def seed_step(seed: int, step: int) -> None:
    """Seed Python, numpy and torch for one step.

    A step is then the same whatever was drawn before it: after a resume, and in another mode.
    """
    mixed = (seed + (step + 1) * _MIX) % _SEEDS
    random.seed(mixed)
    np.random.seed(mixed % (1 << 32))  # the legacy source, which other people's reward and model code draws from
    # torch.manual_seed notes the seed for kinds of devices that a rank never opens, with the stack of the call: that
    # takes time in every step, and the notes pile up.
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.cuda.manual_seed_all(mixed)


def save_state() -> dict[str, Tensor]:
    """The states of all sources as tensors, to be stored beside a rank's weights."""
    version, internal, gauss = random.getstate()
    del version, gauss  # fixed for this Python; a pending Gaussian is drawn again
    _, keys, position, _, _ = np.random.get_state(legacy=True)
    state = {
        "python": torch.tensor(internal, dtype=torch.int64),
        "numpy": torch.cat([torch.from_numpy(np.asarray(keys).astype(np.int64)), torch.tensor([int(position)])]),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def load_state(state: Mapping[str, Tensor]) -> None:
    """Put the sources back into a state that `save_state` made."""
    random.setstate((3, tuple(state["python"].tolist()), None))
    numbers = state["numpy"].numpy()
    np.random.set_state(("MT19937", numbers[:-1].astype(np.uint32), int(numbers[-1]), 0, 0.0))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
