"""Trajectories as an estimator sees them: one row each, its contexts joined, so that each has one vote."""

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncrl.trainer.batch import Batch


@dataclass(frozen=True)
class Joined:
    """Sampled tokens of J trajectories on a grid of S columns, on the CPU.

    sampled_JS: [J, S] bool. trained_JS: [J, S] bool, those that enter the loss; facts per token are known of these.
    """

    sampled_JS: Tensor
    trained_JS: Tensor

    @classmethod
    def of(cls, batch: Batch) -> "Joined":
        """The grid of a batch."""
        lengths_J = torch.from_numpy(batch.trajectories.num_sampled_J)
        sampled_JS = torch.arange(int(lengths_J.max()) if len(lengths_J) else 0) < lengths_J[:, None]
        trained_JS = torch.zeros_like(sampled_JS)
        trained_JS[sampled_JS] = torch.from_numpy(batch.trained_M)
        return cls(sampled_JS, trained_JS)

    def place(self, values_N: Tensor) -> Tensor:
        """[J, S] values of the trained tokens in their places, 0 elsewhere."""
        grid_JS = values_N.new_zeros(self.trained_JS.shape, device="cpu")
        grid_JS[self.trained_JS] = values_N.detach().cpu()
        return grid_JS

    def pick(self, values_JS: Tensor) -> Tensor:
        """[N] those of the trained tokens, in the batch's order."""
        return values_JS[self.trained_JS]
