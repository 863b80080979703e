"""Statistics of rows by group: which rows belong together, and sums, means and extremes of each group."""

import torch
from torch import Tensor


class Groups:
    """The groups of a batch. Names ending in _G have one entry a group, _B one a row.

    A row whose score is not finite has none: it belongs to its group but to none of its statistics.
    """

    def __init__(self, group_ids_B: Tensor, scores_B: Tensor) -> None:
        if group_ids_B.shape != scores_B.shape:
            raise ValueError(
                f"{len(group_ids_B)} group ids for {len(scores_B)} rows: a row would be compared with those of another."
            )
        ids_G, self._of_B = torch.unique(group_ids_B, return_inverse=True)
        self._num = len(ids_G)
        self.scored_B = scores_B.isfinite()
        self.sizes_G = self.sums(torch.ones_like(scores_B))
        self.alone_B = self.scored_B & (self.each(self.sizes_G) == 1)
        lowest_G, highest_G = -self.largest(-scores_B), self.largest(scores_B)
        # By extremes, not by the deviation: the float64 deviation of three rewards of 0.1 is 1.4e-17.
        self.equal_B = self.each((lowest_G == highest_G).double()) > 0

    def each(self, values_G: Tensor) -> Tensor:
        """[B, ...], its group's value for every row."""
        return values_G[self._of_B]

    def known(self, values_B: Tensor) -> Tensor:
        """[B, ...], the values with 0 in place of rows without a score."""
        return torch.where(self.scored_B.reshape(-1, *(1 for _ in values_B.shape[1:])), values_B, 0.0)

    def sums(self, values_B: Tensor) -> Tensor:
        """[G, ...], over rows with a score."""
        return values_B.new_zeros(self._num, *values_B.shape[1:]).index_add(0, self._of_B, self.known(values_B))

    def means(self, values_B: Tensor) -> Tensor:
        """[G]."""
        return self.sums(values_B) / self.sizes_G.clamp(min=1)

    def variances(self, values_B: Tensor) -> Tensor:
        """[G], with n - 1; 0 for groups of one."""
        deviations_B = values_B - self.each(self.means(values_B))
        return self.sums(deviations_B.square()) / (self.sizes_G - 1).clamp(min=1)

    def largest(self, values_B: Tensor) -> Tensor:
        """[G], over rows with a score; -inf for a group without any."""
        values_B = torch.where(self.scored_B, values_B, -torch.inf)
        return values_B.new_full((self._num,), -torch.inf).scatter_reduce(0, self._of_B, values_B, "amax")

    def centre(self, scores_B: Tensor, singleton: str) -> Tensor:
        """[B], scores minus the group's mean."""
        return self.settle(scores_B - self.each(self.means(scores_B)), scores_B, singleton)

    def settle(self, advantages_B: Tensor, scores_B: Tensor, singleton: str) -> Tensor:
        """[B], exactly 0 for equal rewards and for rows without a score, and what `singleton` says for groups of 1.

        Three rewards of 1000.1 have a float32 mean that is not 1000.1; divided by the deviation it would be 0.8.
        """
        advantages_B = torch.where(self.equal_B | ~self.scored_B, 0.0, advantages_B)
        return torch.where(self.alone_B, scores_B if singleton == "raw" else 0.0, advantages_B)
