"""Which of an engine's boxes stand in the digest: every word of the checkpoint once, whatever is replicated."""

from collections.abc import Sequence

import torch
from torch import Tensor

from weightsync.address_map import MAX_DIMS, AddressMap, Loads
from weightsync.engine_words import storage_words
from weightsync.layout import TensorSpec
from weightsync.peers import Peers

_KEY_LENGTH = 1 + 2 * MAX_DIMS
_MOST_IGNORED = 1 / 4
_AT_ONCE = 1 << 22


def settle(boxes: AddressMap, named: Sequence[TensorSpec], peers: Peers, model: Loads) -> tuple[AddressMap, list[str]]:
    """The map with its owners: of boxes with the same source words, over all ranks, the first counts.

    A tensor of which the engine takes no word (a head that it does not serve, a table that it computes) is made opaque:
    its words are kept beside the engine, for the digest. Only where that can hide no mistake: see `_may_ignore`.

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
    ignored = [
        spec.name for spec, words in zip(named, held, strict=True) if not words and spec.name not in boxes.opaque
    ]
    if ignored and _may_ignore(boxes, named, ignored, peers, model):
        boxes = AddressMap(
            list(boxes.all()), {**boxes.opaque, **dict.fromkeys(ignored, "the engine takes no word of it")}
        )
    whole = {spec.name for spec, words in zip(named, held, strict=True) if words == spec.num_words}
    missing = [spec.name for spec in named if spec.name not in whole and spec.name not in boxes.opaque]
    return boxes.settle(owners), missing


def _may_ignore(
    boxes: AddressMap, named: Sequence[TensorSpec], ignored: Sequence[str], peers: Peers, model: Loads
) -> bool:
    """Whether an engine that takes no word of `ignored` is whole without them, on every rank.

    The rest is most of the model; each of them, loaded alone, is taken nowhere (else another tensor came over it); and
    every word of the engine that no tensor reaches is zero, as padding is (else it came from where we did not see it).
    """
    words = {spec.name: spec.num_words for spec in named}
    again = AddressMap.record(model, [spec for spec in named if spec.name in ignored])
    doubts = len(again.boxes) + len(again.opaque) + _unexplained(boxes, model)
    doubts += sum(words[name] for name in ignored) > _MOST_IGNORED * sum(words.values())
    (everywhere,) = peers.sums([doubts])
    return everywhere == 0


def _unexplained(boxes: AddressMap, model: Loads) -> int:
    """Parameters of this rank with a word that no box reaches and that is not zero."""
    reached: dict[int, Tensor] = {}
    for box in boxes.all():
        mask = reached.setdefault(box.words.data_ptr(), torch.zeros_like(box.words, dtype=torch.bool))
        if box.contiguous:
            mask[box.dst : box.dst + box.num_words] = True
            continue
        for low in range(box.span[0], box.span[1], _AT_ONCE):
            positions = torch.arange(low, min(low + _AT_ONCE, box.span[1]), device=mask.device)
            mask[box.translate(positions)[0]] = True
    count = 0
    for _, parameter in model.named_parameters():
        words = storage_words(parameter)
        seen = reached.get(words.data_ptr())
        count += bool(torch.any((words if seen is None else words[~seen]) != 0))
    return count
