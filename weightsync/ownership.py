"""Which of an engine's boxes stand in the digest: every word of the checkpoint once, whatever is replicated."""

from collections.abc import Sequence

import torch

from weightsync.address_map import MAX_DIMS, AddressMap
from weightsync.layout import TensorSpec
from weightsync.peers import Peers

_KEY_LENGTH = 1 + 2 * MAX_DIMS


def settle(boxes: AddressMap, named: Sequence[TensorSpec], peers: Peers) -> tuple[AddressMap, list[str]]:
    """The map with its owners: of boxes with the same source words, over all ranks, the first counts.

    A collective of the engine's ranks.

    Returns:
        The map, and the tensors of which no rank holds every word: the engine's load_weights ignores (a part of) them.
    """
    index = {spec.name: i for i, spec in enumerate(named)}

    def source(tensor: str, key: tuple[int, ...]) -> tuple[int, ...]:
        return (index[tensor], *key, *(0,) * (_KEY_LENGTH - len(key)))

    mine = [(box.num_words, *source(box.tensor, box.source_key())) for box in boxes.all()]
    rows = torch.tensor(mine, dtype=torch.int64).reshape(len(mine), _KEY_LENGTH + 2)
    first: dict[tuple[int, ...], int] = {}
    copies: dict[tuple[int, ...], int] = {}
    held = [0] * len(named)
    for rank, table in enumerate(peers.tables(rows)):
        for words, tensor, *key in table.tolist():
            place = (tensor, *key)
            if place not in first:
                first[place] = rank
                held[tensor] += words
            copies[place] = copies.get(place, -1) + 1
    owners = {}
    for box in boxes.all():
        place = source(box.tensor, box.source_key())
        owners[box.tensor, box.source_key()] = (first[place] == peers.rank, copies[place])
    whole = {spec.name for spec, words in zip(named, held, strict=True) if words == spec.num_words}
    missing = [spec.name for spec in named if spec.name not in whole and spec.name not in boxes.opaque]
    return boxes.settle(owners), missing
