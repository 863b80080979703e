"""What the matrix products read: the plain weights themselves, or a copy in a layout that this CPU reads faster.

On Intel's CPUs a float32 product runs fastest in MKL with the weights transposed, most of all for few rows. On AMD's it
does in oneDNN's packed layout, at twice the speed of MKL's; for up to 128 hidden units MKL on the plain weights wins
there, because oneDNN costs about 10 us per call. Packed bfloat16 runs at up to three times float32's speed. After an
update, once, before the next step, the words that changed are written into the copies; of a tensor in which much did,
or of which nobody says what, a copy is made again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asyncrl.inference.local_engine import copies
from asyncrl.inference.local_engine.changes import Changes
from asyncrl.inference.local_engine.copies import Copy, Where
from asyncrl.inference.local_engine.places import places_of
from asyncrl.inference.local_engine.products import (
    LAYOUTS,
    PAD_CANDIDATES,
    Kind,
    Linear,
    packed_is_right,
    steady_rows,
)
from asyncrl.inference.local_engine.weights import DTYPES, LayerNames, Weights

logger = logging.getLogger(__name__)

PLAIN_BELOW_HIDDEN = 128
"""Up to this hidden size float32 is the fastest, and MKL on plain weights faster than oneDNN, by its cost per call."""


class LayerTensors(NamedTuple):
    """The tensors of one layer in compute dtype (norms: see `forward.rms_norm`), fields as in `LayerNames`."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


def resolve_dtype(compute: str, weights: Weights) -> torch.dtype:
    """`auto` is float32 for float32 storage and for tiny models (there it is also the fastest), else bfloat16."""
    if compute != "auto":
        return DTYPES[compute]
    return torch.float32 if weights.config.hidden <= PLAIN_BELOW_HIDDEN else weights.dtype


class ComputeWeights:
    """Compute copies of one `Weights`, brought up to date lazily.

    `layers`, `embedding`, `norm`, `head` and `linear` are what `forward` uses; they are valid after `refresh`.

    Attributes:
        pad_rows: products of any multiple of so many rows give a row the same numbers, bit for bit, on this CPU.
        num_refreshes: how often copies were made again; who keeps something of `layers` looks whether it is the same.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, *, kind: Kind | None = None) -> None:
        """Builds all copies.

        Args:
            weights: the plain storage; read again at every refresh.
            dtype: of the products, of the hidden states and of the KV cache.
            kind: None picks by size, dtype and CPU; "packed" still falls back to "plain" where the packed product is
                missing or wrong.
        """
        self.weights, self.dtype = weights, dtype
        self.kind: Kind = kind or self._best_kind()
        shapes = sorted({(t.shape[0], t.shape[1]) for t in weights.fused.values() if t.dim() == 2})
        if self.kind == "packed" and not packed_is_right(shapes, dtype):
            self.kind = "plain"
        pad_rows = steady_rows(self.kind, shapes, dtype)
        if pad_rows is None and self.kind != "packed" and packed_is_right(shapes, dtype):
            self.kind = "packed"
            pad_rows = steady_rows(self.kind, shapes, dtype)
        if pad_rows is None:
            logger.warning(
                "products of %d rows and more give other bits than smaller ones on this CPU: answers will depend on "
                "their batch mates, in the last bits",
                PAD_CANDIDATES[-1],
            )
        self.pad_rows = pad_rows or PAD_CANDIDATES[-1]
        self.linear: Linear = LAYOUTS[self.kind].linear
        self._dense: dict[str, Tensor] = {}
        self._matrix: dict[str, Tensor] = {}
        self._copies: dict[str, list[Copy | None]] = {}
        self._changed = Changes(weights.fused)
        self._turned = _neighbours_turn_together(weights)
        self.layers: list[LayerTensors] = []
        self.num_refreshes = 0
        copies.compile_kernel(weights.dtype, dtype)
        self.touch()
        self.refresh()

    def touch(self, fused_names: Iterable[str] | None = None) -> None:
        """Marks fused tensors as changed; None marks all, for loaders that do not say what they wrote."""
        self._changed.add(self.weights.fused if fused_names is None else fused_names)

    def touch_words(self, fused_name: str, where: Where) -> None:
        """Marks words of a fused tensor as changed, by their places in its storage; the array is copied."""
        self._changed.add_words(fused_name, where)

    @torch.inference_mode()
    def refresh(self) -> None:
        """Brings the copies of what was touched up to date. Costs nothing when nothing was."""
        if not self._changed:
            return
        for name in list(self._changed.words):
            if not self._write(name, self._changed.words[name]):
                self._changed.add([name])
        for name in self._changed.whole:
            self._make(name)
        if self._changed.whole:
            self.num_refreshes += 1
            self.layers = [self._layer(names) for names in self.weights.layers]
            self.embedding = self._dense[self.weights.embedding]
            self.norm = self._dense[self.weights.norm]
            self.head = self._matrix[self.weights.head]
        self._changed.clear()

    def _write(self, name: str, pieces: list[Where]) -> bool:
        """Writes changed words into all copies of a tensor; False if that cannot be done for one of them."""
        found = [copy for copy in self._copies[name] if copy is not None]
        for copy in found:
            for where in pieces:
                copy.write(self.weights.fused[name], where)
        return len(found) == len(self._copies[name])

    def _make(self, name: str) -> None:
        """Makes the copies of a tensor."""
        plain = self.weights.fused[name]
        order, shape = self._turned.get(name), (plain.shape[0], plain.shape[-1])
        tensor = plain if order is None else plain[order]
        if plain.dim() == 1:
            # Norms as `forward.rms_norm` takes them: float32 in every compute dtype, the root of the width inside.
            is_norm = name.endswith("norm.weight")
            self._dense[name] = tensor.float() * len(tensor) ** 0.5 if is_norm else tensor.to(self.dtype)
            return
        self._copies[name] = []
        if name == self.weights.embedding:
            self._dense[name] = tensor.to(self.dtype)
            self._note(name, self._dense[name], "plain", shape, None)
        if name != self.weights.embedding or name == self.weights.head:
            self._matrix[name] = LAYOUTS[self.kind].lay_out(tensor.to(self.dtype))
            self._note(name, self._matrix[name], self.kind, shape, order)

    def _note(self, name: str, copy: Tensor, kind: Kind, shape: tuple[int, int], order: Tensor | None) -> None:
        """Keeps where the words of a copy lie, unless it is the plain storage itself."""
        plain = self.weights.fused[name]
        if copy.layout == torch.strided and copy.data_ptr() == plain.data_ptr():
            return
        places = places_of(kind, shape, self.dtype)
        if places is not None and order is not None:
            places = places._replace(row=places.row[np.argsort(order.numpy())])
        self._copies[name].append(Copy.of(copy, places, plain))

    def release(self) -> None:
        """Drops every copy; the next `refresh` makes them again from the plain storage."""
        self._dense.clear()
        self._matrix.clear()
        self._copies.clear()
        self.layers = []
        del self.embedding, self.norm, self.head
        self.touch()

    def _best_kind(self) -> Kind:
        if self.dtype != torch.float32:
            return "packed"
        if _mkl_is_at_home():
            return "transposed"
        return "plain" if self.weights.config.hidden <= PLAIN_BELOW_HIDDEN else "packed"

    def _layer(self, names: LayerNames) -> LayerTensors:
        dense, matrix = self._dense, self._matrix
        return LayerTensors(
            input_norm=dense[names.input_norm],
            qkv=matrix[names.qkv],
            qkv_bias=dense[names.qkv_bias] if names.qkv_bias else None,
            q_norm=dense[names.q_norm] if names.q_norm else None,
            k_norm=dense[names.k_norm] if names.k_norm else None,
            o=matrix[names.o],
            o_bias=dense[names.o_bias] if names.o_bias else None,
            post_norm=dense[names.post_norm],
            gate_up=matrix[names.gate_up],
            gate_up_bias=dense[names.gate_up_bias] if names.gate_up_bias else None,
            down=matrix[names.down],
            down_bias=dense[names.down_bias] if names.down_bias else None,
        )


def _neighbours_turn_together(weights: Weights) -> dict[str, Tensor]:
    """Row orders of query and key parameters under which rotary pairs (i, i + head_dim / 2) become neighbours.

    One complex product then rotates, instead of a concatenation and three more calls. Queries and keys are reordered
    alike, so their products are sums of the same numbers.
    """
    c = weights.config
    pair = torch.arange(c.head_dim).view(2, -1).t().reshape(-1)
    heads = torch.arange(c.heads + c.kv_heads).unsqueeze(1) * c.head_dim
    rest = torch.arange(c.q_size + c.kv_size, c.q_size + 2 * c.kv_size)
    fused = torch.cat([(heads + pair).reshape(-1), rest])
    orders: dict[str, Tensor] = {}
    for names in weights.layers:
        orders |= {name: fused for name in (names.qkv, names.qkv_bias) if name}
        orders |= {name: pair for name in (names.q_norm, names.k_norm) if name}
    return orders


def _mkl_is_at_home() -> bool:
    """Whether MKL runs at its full speed: on Intel's CPUs. By name, not by time: bits must not depend on the load."""
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: there MKL is not torch's library either
        return False
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return has_mkl and "GenuineIntel" in processor
