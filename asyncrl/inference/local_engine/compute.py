"""What the matrix products read: the plain weights themselves, or a copy in a layout that this CPU reads faster.

On Intel's CPUs a float32 product runs fastest in MKL with the weights transposed, most of all for few rows. On AMD's it
does in oneDNN's packed layout, at twice the speed of MKL's; for up to 128 hidden units MKL on the plain weights wins
there, because oneDNN costs about 10 us per call. Packed bfloat16 runs at up to three times float32's speed. Copies are
rebuilt from the plain storage after every update, once, before the next step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.inference.local_engine.weights import DTYPES, LayerNames, Weights

logger = logging.getLogger(__name__)

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(rows [N, in], weight as made by `ComputeWeights`, bias [out] or None) -> [N, out]."""

Kind = Literal["transposed", "packed", "plain"]
"""MKL on transposed copies, oneDNN on packed ones, or MKL on the plain weights."""

PLAIN_BELOW_HIDDEN = 128
"""Up to this hidden size float32 is the fastest, and MKL on plain weights faster than oneDNN, by its cost per call."""

PACK_FOR_ROWS = 32
"""Rows a packed layout is tuned for; any number of rows computes with it."""

PAD_CANDIDATES = (4, 8, 16, 32)
"""Multiples that rows may be padded to, the cheapest first; each divides the next."""

MOST_ROWS_TRIED, WIDEST_TRIED = 160, 4096
"""Rows and outputs of the products that are tried at start: beyond them kernels do not change with the rows."""


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
    """Compute copies of one `Weights`, rebuilt lazily.

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
        if self.kind == "packed" and not self._packed_is_right():
            self.kind = "plain"
        pad_rows = self._steady_rows()
        if pad_rows is None and self.kind != "packed" and self._packed_is_right():
            self.kind = "packed"
            pad_rows = self._steady_rows()
        if pad_rows is None:
            logger.warning(
                "products of %d rows and more give other bits than smaller ones on this CPU: answers will depend on "
                "their batch mates, in the last bits",
                PAD_CANDIDATES[-1],
            )
        self.pad_rows = pad_rows or PAD_CANDIDATES[-1]
        self.linear: Linear = _LAYOUTS[self.kind][1]
        self._dense: dict[str, Tensor] = {}
        self._matrix: dict[str, Tensor] = {}
        self._stale: set[str] = set()
        self._turned = _neighbours_turn_together(weights)
        self.layers: list[LayerTensors] = []
        self.num_refreshes = 0
        self.touch()
        self.refresh()

    def touch(self, fused_names: Iterable[str] | None = None) -> None:
        """Marks fused tensors as changed; None marks all, for loaders that do not say what they wrote."""
        self._stale.update(self.weights.fused if fused_names is None else fused_names)

    @torch.inference_mode()
    def refresh(self) -> None:
        """Rebuilds the copies of what was touched. Costs nothing when nothing was."""
        if not self._stale:
            return
        for name in self._stale:
            tensor = self.weights.fused[name]
            is_matrix = tensor.dim() == 2
            if name in self._turned:
                tensor = tensor[self._turned[name]]
            if name.endswith("norm.weight"):
                # As `forward.rms_norm` takes it: float32 in every compute dtype, with the root of the width inside.
                self._dense[name] = tensor.float() * len(tensor) ** 0.5
            elif not is_matrix or name == self.weights.embedding:
                self._dense[name] = tensor.to(self.dtype)
            if is_matrix and (name != self.weights.embedding or name == self.weights.head):
                self._matrix[name] = self._as_matrix(tensor)
        self._stale.clear()
        self.num_refreshes += 1
        self.layers = [self._layer(names) for names in self.weights.layers]
        self.embedding = self._dense[self.weights.embedding]
        self.norm = self._dense[self.weights.norm]
        self.head = self._matrix[self.weights.head]

    def release(self) -> None:
        """Drops every copy; the next `refresh` makes them again from the plain storage."""
        self._dense.clear()
        self._matrix.clear()
        self.layers = []
        del self.embedding, self.norm, self.head
        self.touch()

    def _as_matrix(self, tensor: Tensor) -> Tensor:
        return _LAYOUTS[self.kind][0](tensor.to(self.dtype))

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

    @torch.inference_mode()
    def _packed_is_right(self) -> bool:
        """Compares the packed product with the plain one on every shape of the model: both ops are private API."""
        generator = torch.Generator().manual_seed(0)
        tolerance = 1e-4 if self.dtype == torch.float32 else 3e-2
        for out_size, in_size in self._shapes():
            # A slice of the output rows is enough to catch a wrong kernel, and keeps a wide head's check cheap.
            weight = torch.randn(min(out_size, 512), in_size, generator=generator).to(self.dtype) / in_size**0.5
            rows = torch.randn(16, in_size, generator=generator).to(self.dtype)
            try:
                got = _packed_linear(rows, _packed(weight), None)
            except (AttributeError, RuntimeError) as error:
                logger.warning("packed products are not available in this torch (%s); using plain ones", error)
                return False
            close = torch.allclose(got.float(), F.linear(rows.float(), weight.float()), rtol=tolerance, atol=tolerance)
            if not close:
                logger.warning(
                    "packed products are wrong for shape %s on this CPU; using plain ones", (out_size, in_size)
                )
                return False
        return True

    def _shapes(self) -> list[tuple[int, int]]:
        """Of the model's products, each once: [out, in]."""
        return sorted({(t.shape[0], t.shape[1]) for t in self.weights.fused.values() if t.dim() == 2})

    @torch.inference_mode()
    def _steady_rows(self) -> int | None:
        """The smallest of PAD_CANDIDATES that is as `pad_rows` says, found by trying; None if there is none.

        Libraries choose kernels by the number of rows, each CPU's in its own way, and kernels sum in different orders.
        """
        unsteady: set[int] = set()
        generator = torch.Generator().manual_seed(0)
        lay_out, linear = _LAYOUTS[self.kind]
        for out_size, in_size in self._shapes():
            weight = torch.randn(min(out_size, WIDEST_TRIED), in_size, generator=generator).to(self.dtype)
            matrix, bias = lay_out(weight), weight[:, 0].contiguous()
            rows = torch.randn(MOST_ROWS_TRIED, in_size, generator=generator).to(self.dtype)
            whole = linear(rows, matrix, bias)
            for count in range(PAD_CANDIDATES[0], MOST_ROWS_TRIED, PAD_CANDIDATES[0]):
                # A copy, since an engine's rows are not a slice of more.
                if not torch.equal(linear(rows[:count].clone(), matrix, bias), whole[:count]):
                    unsteady.add(count)
        return next((size for size in PAD_CANDIDATES if not any(count % size == 0 for count in unsteady)), None)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_FOR_ROWS)
    return packed


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


def _packed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return out


def _transposed(weight: Tensor) -> Tensor:
    return weight.t().contiguous()


def _transposed_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(rows, weight) if bias is None else torch.addmm(bias, rows, weight)


def _plain(weight: Tensor) -> Tensor:
    return weight


def _plain_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(rows, weight, bias)


_LAYOUTS: Mapping[Kind, tuple[Callable[[Tensor], Tensor], Linear]] = {
    "transposed": (_transposed, _transposed_linear),
    "packed": (_packed, lambda rows, weight, bias: _packed_linear(rows, weight, bias)),
    "plain": (_plain, _plain_linear),
}
"""How each kind lays a matrix [out, in] out, and the product that reads it."""


def _mkl_is_at_home() -> bool:
    """Whether MKL runs at its full speed: on Intel's CPUs. By name, not by time: bits must not depend on the load."""
    try:
        processor = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: there MKL is not torch's library either
        return False
    has_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return has_mkl and "GenuineIntel" in processor
