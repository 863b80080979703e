"""A mini-batch that every algorithm can be run on, and the objective and gradient that it gives."""

import torch
from torch import Tensor

from asyncrl.algorithms import Algorithm
from asyncrl.algorithms.aggregation import Denominators, count
from asyncrl.algorithms.objective import Objective, policy_objective

ROWS, WIDTH, GROUP = 8, 7, 4

GRIDS = ("logprobs", "proximal", "sampler", "reference", "entropy", "sum_pi_squared", "weights", "values", "teacher")
"""Attributes of a batch with one entry a token."""


class Batch:
    """Whole groups with holes in their mask, an empty row, and policies that differ."""

    def __init__(self, number: int = 0, *, rows: int = ROWS, width: int = WIDTH) -> None:
        rng = torch.Generator().manual_seed(number)

        def noise() -> Tensor:
            return 0.3 * torch.randn(rows, width, generator=rng)

        self.mask = torch.rand(rows, width, generator=rng) < 0.7
        self.mask[:1] = False
        self.rewards = torch.randint(0, 3, (rows,), generator=rng).float()
        self.group_ids = torch.arange(rows) // GROUP
        self.sampler = -3 * torch.rand(rows, width, generator=rng)
        self.proximal = self.sampler + noise()
        self.logprobs = self.proximal + noise()
        self.reference = self.sampler + noise()
        self.entropy = torch.rand(rows, width, generator=rng)
        self.sum_pi_squared = torch.rand(rows, width, generator=rng)
        self.weights = noise().exp()
        self.values = noise()
        self.teacher = self.sampler + noise()
        self.baselines = torch.rand(rows, generator=rng)

    def columns(self, algorithm: Algorithm) -> dict[str, Tensor]:
        """What the algorithm's estimator asks for, of the weights at the start of the step."""
        known = {
            "logprobs_BT": self.proximal,
            "reference_BT": self.reference,
            "sampler_BT": self.sampler,
            "sum_pi_squared_BT": self.sum_pi_squared,
            "weights_BT": self.weights,
            "values_BT": self.values,
            "teacher_BT": self.teacher,
            "baselines_B": self.baselines,
            "components_KB": torch.stack([self.rewards, self.rewards.square()]),
        }
        return {name: known[name] for name in algorithm.columns}

    def advantages(self, algorithm: Algorithm) -> Tensor:
        """[B, T] of the whole batch."""
        return algorithm.advantage(self.rewards, self.mask, self.group_ids, **self.columns(algorithm))

    def selected(self, algorithm: Algorithm, advantages_BT: Tensor) -> Tensor | None:
        """[B, T] bool, what the algorithm's selection picks of the whole batch; None without one."""
        if algorithm.selection is None:
            return None
        selected_BT = torch.zeros_like(self.mask)
        parts = (self.logprobs, self.proximal, self.sampler, advantages_BT)
        generator = torch.Generator().manual_seed(0)
        selected_BT[self.mask] = algorithm.selection.rule(*(part[self.mask] for part in parts), generator=generator)
        return selected_BT

    def part(self, rows: Tensor) -> "Batch":
        """Some rows, in the order asked for."""
        part = Batch(rows=0)
        for name in (*GRIDS, "mask", "rewards", "group_ids", "baselines"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    def padded(self, *, columns: int, rows: int) -> "Batch":
        """With masked columns to the right and masked rows without a score below, filled with any numbers."""
        padded = Batch(rows=0)
        for name in GRIDS:
            setattr(padded, name, torch.nn.functional.pad(getattr(self, name), (0, columns, 0, rows), value=-1.0))
        padded.mask = torch.nn.functional.pad(self.mask, (0, columns, 0, rows))
        padded.rewards = torch.nn.functional.pad(self.rewards, (0, rows), value=torch.nan)
        padded.baselines = torch.nn.functional.pad(self.baselines, (0, rows), value=0.5)
        padded.group_ids = torch.nn.functional.pad(self.group_ids, (0, rows), value=99)
        return padded


def run(
    algorithm: Algorithm, batch: Batch, *, rows: Tensor | None = None, denominators: Denominators | None = None
) -> tuple[Objective, Tensor]:
    """The objective of some rows, and the gradient of the logprobs of all rows."""
    rows = torch.arange(len(batch.mask)) if rows is None else rows
    leaf = batch.logprobs.clone().requires_grad_()
    advantages = batch.advantages(algorithm)
    selected = batch.selected(algorithm, advantages)
    objective = policy_objective(
        algorithm,
        leaf[rows],
        batch.sampler[rows],
        advantages[rows],
        batch.mask[rows],
        denominators or Denominators(*count(batch.mask)),
        proximal_BT=batch.proximal[rows],
        reference_BT=batch.reference[rows],
        entropy_BT=batch.entropy[rows],
        teacher_BT=batch.teacher[rows],
        selected_BT=None if selected is None else selected[rows],
    )
    objective.loss.backward()
    assert leaf.grad is not None
    return objective, leaf.grad
