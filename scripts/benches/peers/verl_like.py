"""The essence of a plain sharded weight delta (verl's, by its description): what it encodes, and how it is applied.

Every parameter is compared bit for bit with a snapshot; positions become int32, values stay bfloat16: 6 bytes a change.
In rounds of 32 parameters both are concatenated and summed up, with an entry per parameter. The receiver makes a dense
tensor full of NaN per parameter, puts the values in and copies what is not NaN: the work grows with all weights, and a
weight that becomes NaN is never sent. One process, no gather and no network, so the peer is flattered.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

ROUND = 32

Weights = Mapping[str, Tensor]
"""bfloat16 tensors by name."""


class Entry(NamedTuple):
    """One parameter of a round: its elements are `start` to `end` of positions and values."""

    name: str
    start: int
    end: int


class Round(NamedTuple):
    """What is sent at once."""

    entries: list[Entry]
    positions: Tensor
    values: Tensor
    checksum: int

    @property
    def num_bytes(self) -> int:
        """Of positions and values, without the entries."""
        return self.positions.nbytes + self.values.nbytes


def encode(new: Weights, old: Weights) -> Iterator[Round]:
    """Rounds that turn `old` into `new`; the snapshot is left alone, which flatters the peer again."""
    names = list(new)
    for first in range(0, len(names), ROUND):
        entries, positions, values, at = [], [], [], 0
        for name in names[first : first + ROUND]:
            after, before = new[name].view(-1), old[name].view(-1)
            index = (after.view(torch.int16) != before.view(torch.int16)).nonzero().view(-1)
            positions.append(index)
            values.append(after[index])
            entries.append(Entry(name, at, at + index.numel()))
            at += index.numel()
        where, what = torch.cat(positions).to(torch.int32), torch.cat(values)
        yield Round(entries, where, what, checksum(where, what))


def apply(sent: Round, weights: Weights) -> None:
    """NaN marks what was not sent."""
    if sent.checksum != checksum(sent.positions, sent.values):
        raise ValueError("the checksum of a round differs")
    for name, start, end in sent.entries:
        target = weights[name].view(-1)
        dense = torch.full_like(target, float("nan"))
        dense.index_copy_(0, sent.positions[start:end].to(torch.int64), sent.values[start:end])
        is_sent = ~torch.isnan(dense)
        target[is_sent] = dense[is_sent]


def checksum(positions: Tensor, values: Tensor) -> int:
    """Of both, as xor of hashes."""
    return _hash(positions) ^ _hash(values) << 1


def _hash(tensor: Tensor) -> int:
    return int(torch.hash_tensor(tensor).item()) if tensor.numel() else 0  # type: ignore[attr-defined]  # untyped
