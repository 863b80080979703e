"""The digest of a model: the sum over all words of mix64(address << 16 | word), modulo 2^64.

Order free and sharding free: ranks of a trainer and of a server add their partial sums and compare one number. A change
of some words updates it in O(changed). It finds faults, it is no MAC: authenticity is the frame's keyed seal.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from weightsync import diff, diff_numpy
from weightsync.layout import AddressTable, Index, TensorSpec, Words, address_step
from weightsync.model_dir import ModelDir
from weightsync.planes import frozen

MASK = (1 << 64) - 1


class Layout(Protocol):
    """What of a manifest the digest needs."""

    @property
    def tensors(self) -> tuple[TensorSpec, ...]: ...


def digest(words: Words, start: int) -> int:
    """The digest of a contiguous run.

    Args:
        words: [n] unsigned words of 1, 2 or 4 bytes.
        start: address of the first.
    """
    if not diff.HAVE_NUMBA:
        return diff_numpy.digest_words(words, start)
    return int(diff.digest_words(frozen(words), start, address_step(words.dtype.itemsize))) & MASK


def digest_at(addresses: Index, words: Words) -> int:
    """The digest of words at any addresses, [n] each."""
    if not diff.HAVE_NUMBA:
        return diff_numpy.digest_at(addresses, words)
    return int(diff.digest_at(frozen(addresses), frozen(words), address_step(words.dtype.itemsize))) & MASK


def digest_of_bucket(words: Words, table: AddressTable) -> int:
    """The digest of a bucket's words, whose addresses the table tells."""
    step, at, parts = address_step(words.dtype.itemsize), 0, []
    for end, base in zip(table.ends.tolist(), table.bases.tolist(), strict=True):
        parts.append(digest(words[at:end], base + at * step))
        at = end
    return total(parts)


def total(parts: Iterable[int]) -> int:
    """Partial digests of disjoint words, added up."""
    return sum(parts) & MASK


def digest_of_model_dir(path: Path, manifest: Layout, rank: int = 0, world: int = 1) -> int:
    """The digest of a model directory's raw words; with `world` ranks, the partial sum that is `rank`'s share.

    Raises:
        ModelDirError: the directory cannot be read.
        KeyError: it lacks a tensor of the manifest; compare manifests first.
    """
    directory = ModelDir(path)
    return total(digest(directory.words(spec.name), spec.offset) for spec in manifest.tensors[rank::world])
