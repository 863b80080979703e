"""Where the documents of a packed row begin and end, so that attention does not cross from one to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Stretch:
    """Neighbouring tokens of a packed row, and the tokens that they may see.

    Attributes:
        queries: from where to where it lies among the tokens of this rank.
        keys: from where to where the tokens that it sees lie in the whole row: its first document begins where they do,
            and the stretch ends where they do.
        runs: (number, queries, keys) of neighbouring documents that have equally many of both. A document has more keys
            than queries where its beginning is not in the stretch; the last query sees the last key.
        query_bounds: [D + 1] int32, where the queries of each document begin and the last ones end, from the stretch's
            first: cu_seqlens of variable-length kernels. key_bounds: those of its keys.
        longest_query: most queries of a document. longest_key: most keys.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]
    runs: tuple[tuple[int, int, int], ...]
    query_bounds: Tensor
    key_bounds: Tensor
    longest_query: int
    longest_key: int


@dataclass(frozen=True)
class Repeats:
    """Tokens at the beginning of a row that several of its documents see: keys and values are laid out once for each.

    Attributes:
        index_K: int64, which of the row's T tokens each key is of, document after document.
        own_T: int64, the first key of each token.
        sums: (from, to, number, index) for tokens of the beginning that have equally many further keys: index has
            `number` x (to - from) of them, int64, the first further key of each token first. Sums of these are the same
            in every run, which those of `index_add` on a GPU are not.
    """

    index_K: Tensor
    own_T: Tensor
    sums: tuple[tuple[int, int, int, Tensor], ...]

    @classmethod
    def of(cls, index_K: npt.NDArray[np.int64], num_shared: int, device: torch.device) -> "Repeats":
        """From the index alone.

        Args:
            num_shared: tokens that have more than one key: the first ones of the row, those with equally many keys side
                by side. Their first keys are the first ones, too.
        """
        later_K = index_K[num_shared:]
        own_T = np.empty(int(index_K.max()) + 1, dtype=np.int64)
        own_T[index_K[::-1]] = np.arange(len(index_K))[::-1]
        shared = np.flatnonzero(later_K < num_shared)
        by_token = shared[np.argsort(later_K[shared], kind="stable")] + num_shared
        counts_T = np.bincount(later_K[shared], minlength=num_shared)
        ends_T, sums, start = np.cumsum(counts_T), [], 0
        for number, same in groupby(counts_T.tolist()):
            stop = start + len(list(same))
            if number == 0:  # of a prompt behind which no row has a token of its own
                start = stop
                continue
            keys = by_token[ends_T[start] - number : ends_T[stop - 1]].reshape(-1, number)
            sums.append((start, stop, number, torch.from_numpy(keys.T.reshape(-1).copy()).to(device)))
            start = stop
        return cls(torch.from_numpy(index_K).to(device), torch.from_numpy(own_T).to(device), tuple(sums))


@dataclass(frozen=True)
class Documents:
    """The bounds of a packed row, on the host and on the device: no layer has to ask the device for them.

    Attributes:
        stretches: this rank's part of the row: all of it, or two stretches.
        num_tokens: tokens of the whole row.
        peers: ranks that have the other parts, or None.
        repeats: tokens that several documents see, or None.
    """

    stretches: tuple[Stretch, ...]
    num_tokens: int
    peers: dist.ProcessGroup | None = None
    repeats: Repeats | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, share: "Share | None" = None) -> "Documents":
        """Documents that lie one after another, at least one, each with at least one token.

        Args:
            share: this rank's part of the row, whose tokens must be a multiple of its `multiple`; None: all of it.
        """
        num_tokens = sum(lengths)
        if share is None:
            return cls((_stretch(lengths, 0, num_tokens, 0, device),), num_tokens)
        parts, first = share.of(num_tokens), 0
        stretches = []
        for start, stop in parts:
            stretches.append(_stretch(lengths, start, stop, first, device))
            first += stop - start
        return cls(tuple(stretches), num_tokens, share.peers)

    @classmethod
    def behind_prompts(cls, sizes: Sequence[tuple[int, int]], repeats: Repeats, device: torch.device) -> "Documents":
        """Documents of which some see tokens of others; no rank shares the row.

        Args:
            sizes: (queries, keys) of each document; the queries are the last of its tokens.
        """
        num_tokens = sum(queries for queries, _ in sizes)
        stretch = _of_sizes(sizes, (0, num_tokens), (0, len(repeats.index_K)), device)
        return cls((stretch,), num_tokens, repeats=repeats)


@dataclass(frozen=True)
class Share:
    """This rank's part of a row that `size` ranks have together: a piece of its first half, and one of its second.

    A row is cut into 2 x size pieces, and rank r has piece r and piece 2 x size - 1 - r: tokens late in a document see
    more than early ones, and so every rank has some of both. Source: arXiv:2407.21783, section 3.3.2.

    Attributes:
        peers: the ranks.
        rank: this one's index among them.
        size: number of them.
    """

    peers: dist.ProcessGroup | None
    rank: int
    size: int

    @property
    def multiple(self) -> int:
        """What the number of a row's tokens must be a multiple of."""
        return 2 * self.size

    def of(self, num_tokens: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """From where to where the two pieces lie in a row."""
        assert num_tokens % self.multiple == 0
        width, last = num_tokens // self.multiple, self.multiple - 1
        first, second = self.rank * width, (last - self.rank) * width
        return (first, first + width), (second, second + width)


def _stretch(lengths: Sequence[int], start: int, stop: int, first: int, device: torch.device) -> Stretch:
    """The tokens from `start` to `stop` of a row, which are this rank's from number `first` on."""
    ends = list(accumulate(lengths))
    begins = [end - length for end, length in zip(ends, lengths, strict=True)]
    inside = [(begin, min(end, stop)) for begin, end in zip(begins, ends, strict=True) if end > start and begin < stop]
    sizes = [(end - max(begin, start), end - begin) for begin, end in inside]
    return _of_sizes(sizes, (first, first + stop - start), (inside[0][0], stop), device)


def _of_sizes(
    sizes: Sequence[tuple[int, int]], queries: tuple[int, int], keys: tuple[int, int], device: torch.device
) -> Stretch:
    query_lengths, key_lengths = ([size[side] for size in sizes] for side in (0, 1))
    query_bounds, key_bounds = (
        torch.tensor([0, *accumulate(each)], dtype=torch.int32, device=device) for each in (query_lengths, key_lengths)
    )
    return Stretch(
        queries=queries,
        keys=keys,
        runs=tuple((len(list(same)), *size) for size, same in groupby(sizes)),
        query_bounds=query_bounds,
        key_bounds=key_bounds,
        longest_query=max(query_lengths),
        longest_key=max(key_lengths),
    )
