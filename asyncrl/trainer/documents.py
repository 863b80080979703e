"""Where the documents of a packed row begin and end, so that attention does not cross from one to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """The bounds of a packed row, on the host and on the device: no layer has to ask the device for them.

    Attributes:
        runs: (number, length) of neighbours that are equally long, in the row's order.
        bounds: [D + 1] int32, where each document begins and the last one ends: cu_seqlens of variable-length kernels.
        longest: tokens of the longest document.
    """

    runs: tuple[tuple[int, int], ...]
    bounds: Tensor
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Documents":
        """Documents that lie one after another, at least one, each with at least one token."""
        runs = tuple((len(list(same)), length) for length, same in groupby(lengths))
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        return cls(runs, bounds, max(lengths))
