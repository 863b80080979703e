"""Where each word of the checkpoint lies inside an engine, found by running the engine's own load_weights once.

Its slicing, chunking and fusing are views, and its last step is `destination.copy_(source)`. The sources here are
probes: tensors without data that remember which view of the checkpoint's tensor they are. Each copy gives one affine
box, exact and without one rule about qkv, gate_up, tensor parallelism or experts. Nothing is written. What is more than
a view (a cast, a concatenation, a scalar) is opaque: that tensor goes through load_weights whole.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from weightsync.engine_words import storage_words
from weightsync.layout import TensorSpec

aten = torch.ops.aten
_KEEPS_BITS = (
    aten._to_copy.default,
    aten.clone.default,
    aten.detach.default,
    aten.alias.default,
    aten.lift_fresh.default,
)
MAX_DIMS = 6
"""Dimensions of a box at most; none was seen with more than three."""

MAX_WORDS = 1 << 22
"""Words of a box, about: what is read in one go when the weights are measured a piece at a time."""

_FILLS = (aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default)


class Loads(Protocol):
    """What the map needs of an engine's model; SGLang's and the local engine's have it."""

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> object: ...
    def named_parameters(self) -> Iterator[tuple[str, Tensor]]: ...


class OpaqueOperation(Exception):
    """load_weights did more with a tensor than take views of it and copy."""


@dataclass(frozen=True, eq=False)
class Box:
    """words[dst + sum(i_k * dst_stride_k)] = tensor[src + sum(i_k * src_stride_k)] for 0 <= i_k < n_k.

    Attributes:
        tensor: the checkpoint's name.
        src, dst: first word in the flat tensor and in the storage.
        dims: (n, src_stride, dst_stride), by falling src_stride; dimensions that run on are joined.
        words: the whole storage.
        counts: does this box stand in the digest? Of replicas, one does.
        replicas: how many others of the same source there are, over all engine ranks; of the box that counts.
    """

    tensor: str
    src: int
    dst: int
    dims: tuple[tuple[int, int, int], ...]
    words: Tensor
    counts: bool = True
    replicas: int = 0

    @property
    def num_words(self) -> int:
        return math.prod(n for n, _, _ in self.dims)

    @property
    def contiguous(self) -> bool:
        """One run on both sides?"""
        return not self.dims or (len(self.dims) == 1 and self.dims[0][1:] == (1, 1))

    @cached_property
    def span(self) -> tuple[int, int]:
        """First source word and the one past the last."""
        return self.src, self.src + sum((n - 1) * stride for n, stride, _ in self.dims) + 1

    def source_key(self) -> tuple[int, ...]:
        """Equal for two boxes of the same source words."""
        return (self.src, *(number for n, stride, _ in self.dims for number in (n, stride)))

    def translate(self, positions: Tensor) -> tuple[Tensor, Tensor | slice]:
        """Where positions of the flat tensor lie.

        Args:
            positions: [n] int64, rising.
        Returns:
            Storage indices of those inside the box, and which of `positions` they are.
        """
        low, high = self.span
        ends = torch.searchsorted(positions, torch.tensor([low, high], device=positions.device)).tolist()
        inside = slice(ends[0], ends[1])
        rest = positions[inside] - self.src
        if self.contiguous:
            return rest + self.dst, inside
        found = torch.full_like(rest, self.dst)
        valid = torch.ones_like(rest, dtype=torch.bool)
        for n, src_stride, dst_stride in self.dims:
            step = torch.div(rest, src_stride, rounding_mode="floor")
            valid &= step < n
            rest = rest - step * src_stride
            found += step * dst_stride
        valid &= rest == 0
        return found[valid], ends[0] + torch.nonzero(valid).flatten()


class AddressMap:
    """Boxes by tensor, and the tensors that have none."""

    def __init__(self, boxes: Sequence[Box], opaque: dict[str, str]) -> None:
        self.boxes: dict[str, list[Box]] = {}
        for box in boxes:
            self.boxes.setdefault(box.tensor, []).append(box)
        self.opaque = opaque

    @classmethod
    def record(cls, model: Loads, tensors: Sequence[TensorSpec]) -> "AddressMap":
        """Learn the map of `model`, whose weights stay as they are."""
        named = [spec for spec in tensors if spec.num_words]
        opaque: dict[str, str] = {}
        try:
            boxes = _recorded(model, named)
        except Exception:  # a loader may fail in any way on a tensor without data: find the one that does
            boxes = []
            for spec in named:
                try:
                    boxes += _recorded(model, [spec])
                except Exception as error:  # that tensor then goes through load_weights whole
                    opaque[spec.name] = repr(error)
        return cls([piece for box in _last_writers(boxes) for piece in _pieces(box)], opaque)

    def settle(self, owners: dict[tuple[str, tuple[int, ...]], tuple[bool, int]]) -> "AddressMap":
        """The map with who counts: (tensor, source key) -> (does this rank's first box count, number of replicas)."""
        boxes, seen = [], set()
        for box in self.all():
            key = (box.tensor, box.source_key())
            counts, replicas = owners[key]
            counts = counts and key not in seen
            seen.add(key)
            boxes.append(replace(box, counts=counts, replicas=replicas if counts else 0))
        return AddressMap(boxes, self.opaque)

    def without(self, names: Iterable[str]) -> "AddressMap":
        """The map with these tensors made opaque: another engine rank cannot take them by boxes."""
        gone = {name: self.opaque.get(name, "opaque on another rank") for name in names}
        return AddressMap([box for box in self.all() if box.tensor not in gone], {**self.opaque, **gone})

    def meeting(self, tensor: str, start: int, end: int) -> list[Box]:
        """The boxes that may hold words of a run of a tensor."""
        return [box for box in self.boxes.get(tensor, ()) if box.span[0] < end and start < box.span[1]]

    def all(self) -> Iterator[Box]:
        """Every box, in the order of tensors."""
        for boxes in self.boxes.values():
            yield from boxes


def signature(model: Loads) -> tuple[tuple[str, int, int], ...]:
    """Where a model's parameters lie: another signature needs another map."""
    return tuple((name, p.data_ptr(), p.numel()) for name, p in model.named_parameters())


class _Probe(torch.Tensor):
    """Looks like a tensor of the checkpoint and has no data; `view` is a meta view in the checkpoint's coordinates."""

    view_of: Tensor
    sink: list[tuple[Tensor, Tensor]]

    @staticmethod
    def __new__(cls, view: Tensor, device: torch.device, sink: list[tuple[Tensor, Tensor]]) -> "_Probe":
        probe: _Probe = torch.Tensor._make_wrapper_subclass(
            cls,
            view.size(),
            strides=view.stride(),
            storage_offset=view.storage_offset(),
            dtype=view.dtype,
            device=device,
        )
        probe.view_of, probe.sink = view, sink
        return probe

    def __init__(self, *_: object) -> None:
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own idiom

    # Any: torch calls this with whatever the loader passed; its own stub lacks `func`.
    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch documents it
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten.copy_.default:
            target, source = args[0], args[1]
            if isinstance(target, _Probe) or not isinstance(source, _Probe) or target.dtype != source.dtype:
                raise OpaqueOperation(f"copy of {source.dtype} into {target.dtype}")
            source.sink.append((target, source.view_of.expand(target.shape)))
            return target
        probe = next(a for a in args if isinstance(a, _Probe))
        if func in _KEEPS_BITS:
            if kwargs.get("dtype") not in (None, probe.dtype):
                raise OpaqueOperation(f"cast of {probe.dtype} to {kwargs['dtype']}")
            return _Probe(probe.view_of, kwargs.get("device") or probe.device, probe.sink)
        returns = func._schema.returns
        if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            out = func(*(a.view_of if isinstance(a, _Probe) else a for a in args), **kwargs)
            return tree_map(lambda t: _Probe(t, probe.device, probe.sink) if isinstance(t, torch.Tensor) else t, out)
        raise OpaqueOperation(f"{func}")


class _KeepPadding(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type the class
    """Loaders zero the padding behind a vocabulary: while recording, even that is not written."""

    def __init__(self, storages: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._storages = storages

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS and self._is_weight(args[0]):
            return args[0]
        return func(*args, **(kwargs or {}))

    def _is_weight(self, target: Tensor) -> bool:
        if isinstance(target, _Probe) or target.device.type == "meta":
            return False
        return target.untyped_storage().data_ptr() in self._storages


def _recorded(model: Loads, specs: Sequence[TensorSpec]) -> list[Box]:
    parameters = [parameter for _, parameter in model.named_parameters()]
    device = parameters[0].device
    sinks: list[tuple[TensorSpec, list[tuple[Tensor, Tensor]]]] = []
    probes = []
    for spec in specs:
        sinks.append((spec, []))
        meta = torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        probes.append((spec.name, _Probe(meta, device, sinks[-1][1])))
    storages = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    with torch.no_grad(), _KeepPadding(storages):
        model.load_weights(iter(probes))
    return [_box(spec, target, view) for spec, copies in sinks for target, view in copies]


def _box(spec: TensorSpec, target: Tensor, view: Tensor) -> Box:
    # An 8-byte element is two words, so one more innermost dimension.
    scale = target.element_size() // spec.width
    dims = [
        (n, src * scale, dst * scale)
        for n, src, dst in zip(view.shape, view.stride(), target.stride(), strict=True)
        if n != 1
    ] + ([(2, 1, 1)] if scale == 2 else [])
    dims.sort(key=lambda dim: -dim[1])
    joined: list[tuple[int, int, int]] = []
    for n, src, dst in dims:
        if joined and joined[-1][1:] == (src * n, dst * n):
            joined[-1] = (joined[-1][0] * n, src, dst)
        else:
            joined.append((n, src, dst))
    for (_, outer, _), (n, inner, _) in itertools.pairwise(joined):
        if outer < n * inner:
            raise OpaqueOperation(f"{spec.name} is read through a view whose words repeat")
    if len(joined) > MAX_DIMS or any(src < 1 for _, src, _ in joined):
        raise OpaqueOperation(f"{spec.name} is read through a view that broadcasts or has many dimensions")
    source, place = int(view.storage_offset()) * scale, int(target.storage_offset()) * scale
    return Box(spec.name, source, place, tuple(joined), storage_words(target))


def _pieces(box: Box) -> Iterator[Box]:
    """A box as boxes of about MAX_WORDS at most, cut along its outermost dimension; equal for replicas."""
    if box.num_words <= MAX_WORDS:
        yield box
        return
    n, src, dst = box.dims[0]
    step = max(1, MAX_WORDS * n // box.num_words)
    for at in range(0, n, step):
        outer = (min(step, n - at), src, dst)
        dims = box.dims[1:] if outer[0] == 1 else (outer, *box.dims[1:])
        yield replace(box, src=box.src + at * src, dst=box.dst + at * dst, dims=dims)


def _last_writers(boxes: Sequence[Box]) -> list[Box]:
    """Of boxes with the same destination only the last: two names of one tensor, and the second wins there."""
    kept: dict[object, Box] = {}
    for box in boxes:
        place = (box.words.data_ptr(), box.dst, tuple((n, dst) for n, _, dst in box.dims))
        kept.pop(place, None)
        kept[place] = box
    return list(kept.values())
