"""The layout that trainer and servers must share: tensors, their places in the address space, and ties."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import blake3
import msgpack

from weightsync.errors import LayoutMismatch, ModelDirError, ShardError
from weightsync.layout import ITEMSIZE, MAX_ADDRESS, MAX_BUCKET_WORDS, Bucket, Segment, TensorSpec, by_name
from weightsync.model_dir import ModelDir, StoredTensor

__all__ = ["Bucket", "Manifest", "Segment", "TensorSpec"]

_SCHEMA = 1
_MOST = 1 << 48  # elements along one dimension
_FLOATS = ("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Manifest:
    """Tensors in address order. `ties` are (alias, tensor): names that hold no words of their own."""

    tensors: tuple[TensorSpec, ...]
    ties: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        at = 0
        for spec in self.tensors:
            if spec.dtype not in ITEMSIZE or spec.offset != at:
                raise ValueError(f"tensor {spec.name}: dtype {spec.dtype} at address {spec.offset}, expected {at}.")
            at += spec.num_addresses
        if at >= MAX_ADDRESS:
            raise ValueError(f"the model takes {at} addresses; the digest mixes an address of 48 bits.")
        if len(by_name(self.tensors)) != len(self.tensors):
            raise ValueError("a tensor is listed twice.")

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, str, tuple[int, ...]]], ties: Iterable[tuple[str, str]] = ()) -> Self:
        """A manifest of (name, dtype, shape), in the order of names."""
        specs, at = [], 0
        for name, dtype, shape in sorted(tensors):
            specs.append(TensorSpec(name, dtype, tuple(shape), at))
            at += specs[-1].num_addresses
        return cls(tuple(specs), tuple(sorted(ties)))

    @classmethod
    def from_model_dir(cls, path: Path, wire_dtype: str | None = None) -> Self:
        """The manifest of a model directory; every tensor keeps the dtype in which it is stored, on the wire too.

        With tied embeddings `lm_head.weight` is a tie of the embedding, whether or not the files list it: it is sent
        once, and both sides get one layout from either kind of directory.

        Args:
            wire_dtype: what most of the floating weights must be in; single tensors may differ (a router's bias in
                float32 beside bfloat16). None: whatever they are in.
        Raises:
            ModelDirError: the directory cannot be read, or most of it is in another float dtype. Servers would cast
                it, and the bits of version 0.0 would depend on who cast them.
        """
        directory = ModelDir(path)
        tied = {}
        if directory.ties_embeddings:
            embedding = next((name for name in directory.tensors if name.endswith("embed_tokens.weight")), None)
            tied = {} if embedding is None else {"lm_head.weight": embedding}
        if wire_dtype is not None:
            _check_wire_dtype(path, {n: t for n, t in directory.tensors.items() if n not in tied}, wire_dtype)
        names = [name for name in directory.tensors if name not in tied]
        return cls.of(((n, directory.tensors[n].dtype, directory.tensors[n].shape) for n in names), tied.items())

    @cached_property
    def layout_id(self) -> str:
        """16 hex digits: the first 8 bytes of blake3 of the canonical encoding."""
        return blake3.blake3(self.to_bytes()).digest(8).hex()

    @property
    def layout_number(self) -> int:
        """The layout id as it stands in a frame's header."""
        return int(self.layout_id, 16)

    @cached_property
    def by_name(self) -> dict[str, TensorSpec]:
        return by_name(self.tensors)

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each tensor, ties included: what `shards_of` casts to."""
        found = {spec.name: spec.dtype for spec in self.tensors}
        return found | {alias: found[tensor] for alias, tensor in self.ties}

    @property
    def num_words(self) -> int:
        return sum(spec.num_words for spec in self.tensors)

    @property
    def num_bytes(self) -> int:
        return sum(spec.num_words * spec.width for spec in self.tensors)

    def whole(self) -> list[Segment]:
        """Every tensor as one segment, empty ones left out."""
        return [Segment(spec.name, 0, spec.num_words) for spec in self.tensors if spec.num_words]

    def to_bytes(self) -> bytes:
        """The canonical encoding, equal on every machine."""
        tensors = [[spec.name, spec.dtype, list(spec.shape)] for spec in self.tensors]
        packed: bytes = msgpack.packb([_SCHEMA, tensors, [list(tie) for tie in self.ties]])
        return packed

    @classmethod
    def from_bytes(cls, blob: bytes) -> Self:
        """The manifest of `to_bytes`.

        Raises:
            LayoutMismatch: the bytes are not a manifest of this schema.
        """
        try:
            schema, tensors, ties = msgpack.unpackb(blob)
            if schema != _SCHEMA:
                raise LayoutMismatch(f"manifest schema {schema}, this build reads {_SCHEMA}. Run the same asyncrl.")
            for name, dtype, shape in tensors:
                _check_tensor(name, dtype, shape)
            if not all(isinstance(part, str) for tie in ties for part in tie):
                raise LayoutMismatch("the log's manifest ties names that are no text.")
            return cls.of(((n, d, tuple(s)) for n, d, s in tensors), ((a, b) for a, b in ties))
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            if isinstance(error, LayoutMismatch):
                raise
            raise LayoutMismatch(f"the log's manifest cannot be read ({error!r:.200}).") from error

    def check(self, other: "Manifest", ours: str, theirs: str) -> None:
        """Refuse to exchange weights with `other`; `ours` and `theirs` say in the message who holds what.

        Raises:
            LayoutMismatch: names the first tensor that differs, with both sides' shape and dtype.
        """
        if self.layout_id == other.layout_id:
            return
        mine, other_specs = self.by_name, other.by_name
        difference = f"ties {self.ties} and {other.ties}"
        for name in sorted(mine.keys() | other_specs.keys()):
            a, b = mine.get(name), other_specs.get(name)
            if a is None or b is None or (a.dtype, a.shape) != (b.dtype, b.shape):
                difference = f"tensor {name}: {ours} has {_describe(a)}, {theirs} has {_describe(b)}"
                break
        raise LayoutMismatch(
            f"{difference}. Weights of one cannot be added to the other, so nothing is exchanged. Point both at the "
            "same model."
        )

    def buckets(self, segments: Sequence[Segment], words: int, rank: int = 0, first_id: int = 0) -> list[Bucket]:
        """Cut one rank's segments into buckets of at most `words` words.

        A segment of half a bucket or more is cut into even pieces of its own, so that it is diffed where it lies;
        smaller ones are grouped, since a frame costs about 150 bytes and 10 us whatever it holds.

        Raises:
            ShardError: a segment is not part of a tensor of this manifest.
        """
        if not 0 < words <= MAX_BUCKET_WORDS:
            raise ValueError(f"bucket_words = {words} must be in 1..{MAX_BUCKET_WORDS}.")
        groups: list[tuple[int, list[Segment]]] = []
        open_groups: dict[int, list[Segment]] = {}
        room: dict[int, int] = {}
        for segment in segments:
            width = self._checked(segment).width
            if 2 * segment.words >= words:
                groups.extend((width, [piece]) for piece in _even_pieces(segment, words))
                continue
            if room.get(width, 0) < segment.words:
                open_groups[width], room[width] = [], words
                groups.append((width, open_groups[width]))
            open_groups[width].append(segment)
            room[width] -= segment.words
        return [Bucket(first_id + i, rank, width, tuple(group)) for i, (width, group) in enumerate(groups)]

    def _checked(self, segment: Segment) -> TensorSpec:
        spec = self.by_name.get(segment.tensor)
        if spec is None:
            raise ShardError(
                f"the trainer holds tensor {segment.tensor}, which the model directory does not: servers would never "
                "get it. Compare the names of the checkpoint with those of the trainer's model."
            )
        if segment.words <= 0 or segment.start < 0 or segment.end > spec.num_words:
            raise ShardError(f"segment {segment} does not lie inside {spec.name} of {spec.num_words} words.")
        return spec


def _even_pieces(segment: Segment, words: int) -> list[Segment]:
    even = -(-segment.words // -(-segment.words // words))
    # Multiples of 64 words keep the vector compare of every piece but the last free of a tail.
    size = min(-(-even // 64) * 64, words)
    return [
        Segment(segment.tensor, start, min(size, segment.end - start))
        for start in range(segment.start, segment.end, size)
    ]


def _check_wire_dtype(path: Path, tensors: Mapping[str, StoredTensor], wire_dtype: str) -> None:
    held: Counter[str] = Counter()
    for stored in tensors.values():
        if stored.dtype in _FLOATS:
            held[stored.dtype] += math.prod(stored.shape)
    if not held or held[wire_dtype] == max(held.values()):
        return
    most = max(held, key=lambda dtype: held[dtype])
    name = next(name for name, stored in tensors.items() if stored.dtype == most)
    raise ModelDirError(
        f"{path}: tensor {name} is {most}, the wire dtype is {wire_dtype}, and most weights are as that tensor. "
        "Trainer and servers must start from the same bits: save the model in the wire dtype, or set "
        f"model.wire_dtype to {most}."
    )


def _describe(spec: TensorSpec | None) -> str:
    return "no such tensor" if spec is None else f"{spec.dtype} {list(spec.shape)}"


def _check_tensor(name: object, dtype: object, shape: object) -> None:
    """A shape is multiplied before anything is made of it: a text in it would be repeated so many times."""
    sound = isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)
    if not (sound and all(type(n) is int and 0 <= n < _MOST for n in shape)):  # type: ignore[attr-defined]  # a list
        raise LayoutMismatch(
            "the log's manifest has a tensor whose name, dtype or shape is not one that is ever written."
        )
