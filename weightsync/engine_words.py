"""Words of an engine's tensors, on the CPU or a GPU: views, decoding of planes, digests. torch and numpy only."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weightsync import diff, diff_numpy
from weightsync import digest as cpu_digest
from weightsync.diff_numpy import ESCAPE, SKIP
from weightsync.layout import WORD_DTYPE, Index, Words, address_step
from weightsync.planes import Planes, Room, decode_planes

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_NUMPY: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.int16), 4: np.dtype(np.int32)}
_CHUNK = 1 << 22  # a GPU needs int64 temporaries for a digest: this bounds them to some hundred megabytes


def storage_words(tensor: Tensor) -> Tensor:
    """All words of the storage that a tensor is a view of, [n] integers of 1, 2 or 4 bytes; 8-byte elements are two."""
    width = min(tensor.element_size(), 4)
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=_SIGNED[width], device=tensor.device)
    return flat.set_(storage, 0, (storage.nbytes() // width,), (1,))


def to_engine(words: Words, device: torch.device) -> Tensor:
    """Unsigned numpy words as torch's integers, on the engine's device; on the CPU the memory is shared."""
    signed = words.view(_NUMPY[words.dtype.itemsize])
    return torch.from_numpy(signed if signed.flags.writeable else signed.copy()).to(device)


def decode(planes: Planes, device: torch.device) -> tuple[Tensor, Tensor]:
    """(positions int64, differences) of checked planes; decoded where the weights are, so that planes travel."""
    if device.type == "cpu":
        positions, differences = decode_on_cpu(planes)
        return torch.from_numpy(positions), to_engine(differences, device)
    gaps, values = to_engine(planes.gaps, device), to_engine(planes.values, device)
    return decode_on_device(gaps, values, to_engine(planes.escaped, device), planes.num_changed)


def decode_on_cpu(planes: Planes, room: Room | None = None) -> tuple[Index, Words]:
    """As `planes.decode_planes`, faster where numba is missing: torch's running sum takes a seventh of numpy's."""
    if diff.HAVE_NUMBA:
        return decode_planes(planes, planes.escaped.dtype, room)
    positions, differences = (room or Room()).of(planes.num_changed, planes.escaped.dtype)
    diff_numpy.decode(planes, positions, differences, _running_sum)
    return positions, differences


def _running_sum(numbers: Index) -> None:
    found = torch.from_numpy(numbers)
    torch.cumsum(found, 0, out=found)


def decode_on_device(gaps: Tensor, values: Tensor, escaped: Tensor, num_changed: int) -> tuple[Tensor, Tensor]:
    """`decode` in torch operations, for any device.

    Args:
        gaps, values: [G], [ceil(n / 2)] uint8.
        escaped: [X] words.
        num_changed: n.
    """
    steps = gaps.to(torch.int64) + (gaps != SKIP)
    # int64: a bucket may have more than 2^31 - 1 positions before its last word.
    positions = torch.cumsum(steps, 0)[gaps != SKIP] - 1
    codes = torch.stack((values & 15, values >> 4), 1).flatten()[:num_changed]
    z = codes.to(torch.int64) + 1
    differences = ((z >> 1) ^ -(z & 1)).to(escaped.dtype)
    if escaped.numel():
        differences[codes == ESCAPE] = escaped
    return positions, differences


def preview(
    words: Tensor, positions: Tensor, differences: Tensor, *, shift: int, start: int
) -> tuple[Tensor, Tensor, int]:
    """What adding to a run of a storage would make of it; nothing is written.

    Args:
        words: [m] the storage.
        positions: [n] int64, rising; words[positions + shift] change.
        differences: [n] of the storage's type.
        shift: from position to index.
        start: address of position 0.
    Returns:
        Indices [n] int64, new words [n], and the digest's gain.
    """
    indices = positions + shift
    old = words[indices]
    new = old + differences
    addresses = start + positions * address_step(words.element_size())
    return indices, new, (digest_at(addresses, new) - digest_at(addresses, old)) & cpu_digest.MASK


def digest_at(addresses: Tensor, words: Tensor) -> int:
    """The digest of words at addresses, [n] each, modulo 2^64."""
    if words.device.type == "cpu":
        return cpu_digest.digest_at(addresses.numpy(), unsigned(words))
    return cpu_digest.total(
        digest_on_device(addresses[at : at + _CHUNK], words[at : at + _CHUNK]) for at in range(0, words.numel(), _CHUNK)
    )


def digest_run(words: Tensor, start: int) -> int:
    """The digest of a contiguous run whose first word has address `start`."""
    if words.device.type == "cpu":
        return cpu_digest.digest(unsigned(words), start)
    step, parts = address_step(words.element_size()), []
    for at in range(0, words.numel(), _CHUNK):
        piece = words[at : at + _CHUNK]
        addresses = start + (at + torch.arange(piece.numel(), device=words.device)) * step
        parts.append(digest_on_device(addresses, piece))
    return cpu_digest.total(parts)


def digest_on_device(addresses: Tensor, words: Tensor) -> int:
    """`digest_at` in torch operations, for any device: int64 wraps like the unsigned words of the definition."""
    base = addresses << 16
    bits = words.to(torch.int64)
    if words.element_size() == 4:
        terms = _mix64(base + (bits & 0xFFFF)) + _mix64(base + (1 << 16) + (bits >> 16 & 0xFFFF))
    else:
        terms = _mix64(base + (bits & (0xFF if words.element_size() == 1 else 0xFFFF)))
    return int(terms.sum()) & cpu_digest.MASK


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed64(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed64(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, count: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask drops the copies of the sign.
    return (x >> count) & ((1 << (64 - count)) - 1)


def _signed64(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def unsigned(words: Tensor) -> Words:
    """Words in the CPU's memory as numpy's; the memory is shared."""
    return words.numpy().view(WORD_DTYPE[words.element_size()])
