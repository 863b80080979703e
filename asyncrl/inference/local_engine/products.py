"""How a matrix is laid out for this CPU's products, the product that reads it, and what is tried of both at start.

Libraries choose kernels by CPU, shape and number of rows, so what a layout is worth here is found by trying it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(rows [N, in], weight as its layout has it, bias [out] or None) -> [N, out]."""

Kind = Literal["transposed", "packed", "plain"]
"""MKL on transposed copies, oneDNN on packed ones, or MKL on the plain weights."""

Shape = tuple[int, int]
"""[out, in] of a matrix."""

PACK_FOR_ROWS = 32
"""Rows a packed layout is tuned for; any number of rows computes with it."""

PAD_CANDIDATES = (4, 8, 16, 32)
"""Multiples that rows may be padded to, the cheapest first; each divides the next."""

MOST_ROWS_TRIED, WIDEST_TRIED = 160, 4096
"""Rows and outputs of the products that are tried at start: beyond them kernels do not change with the rows."""


class Layout(NamedTuple):
    """How a kind lays a matrix [out, in] out, and the product that reads it."""

    lay_out: Callable[[Tensor], Tensor]
    linear: Linear


@torch.inference_mode()
def packed_is_right(shapes: Iterable[Shape], dtype: torch.dtype) -> bool:
    """Compares the packed product with the plain one on every shape of a model: both ops are private API."""
    generator = torch.Generator().manual_seed(0)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for out_size, in_size in shapes:
        # A slice of the output rows is enough to catch a wrong kernel, and keeps a wide head's check cheap.
        weight = torch.randn(min(out_size, 512), in_size, generator=generator).to(dtype) / in_size**0.5
        rows = torch.randn(16, in_size, generator=generator).to(dtype)
        try:
            got = _packed_linear(rows, _packed(weight), None)
        except (AttributeError, RuntimeError) as error:
            logger.warning("packed products are not available in this torch (%s); using plain ones", error)
            return False
        close = torch.allclose(got.float(), F.linear(rows.float(), weight.float()), rtol=tolerance, atol=tolerance)
        if not close:
            logger.warning("packed products are wrong for shape %s on this CPU; using plain ones", (out_size, in_size))
            return False
    return True


@torch.inference_mode()
def steady_rows(kind: Kind, shapes: Iterable[Shape], dtype: torch.dtype) -> int | None:
    """The smallest of PAD_CANDIDATES of which any multiple of rows gives a row the same numbers; None: there is none.

    Found by trying: kernels sum in different orders, and a library may choose them by the number of rows.
    """
    unsteady: set[int] = set()
    generator = torch.Generator().manual_seed(0)
    lay_out, linear = LAYOUTS[kind]
    for out_size, in_size in shapes:
        weight = torch.randn(min(out_size, WIDEST_TRIED), in_size, generator=generator).to(dtype)
        matrix, bias = lay_out(weight), weight[:, 0].contiguous()
        rows = torch.randn(MOST_ROWS_TRIED, in_size, generator=generator).to(dtype)
        whole = linear(rows, matrix, bias)
        for count in range(PAD_CANDIDATES[0], MOST_ROWS_TRIED, PAD_CANDIDATES[0]):
            # A copy, since an engine's rows are not a slice of more.
            if not torch.equal(linear(rows[:count].clone(), matrix, bias), whole[:count]):
                unsteady.add(count)
    return next((size for size in PAD_CANDIDATES if not any(count % size == 0 for count in unsteady)), None)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_FOR_ROWS)
    return packed


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


LAYOUTS: Mapping[Kind, Layout] = {
    "transposed": Layout(_transposed, _transposed_linear),
    "packed": Layout(_packed, lambda rows, weight, bias: _packed_linear(rows, weight, bias)),
    "plain": Layout(_plain, _plain_linear),
}
