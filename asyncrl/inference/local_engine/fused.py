"""One decode step in float32 with numba's kernels between the matrix products, where numba is installed.

`Forward.decode` computes the same with torch alone: some thirty calls a layer, most of them for a few thousand numbers
that take less time than the call. Here a layer is four products and four kernels, and attention reads only positions
that are there. Their sums differ in the last bits, so one engine takes either way, always.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.inference.local_engine import kernels
from asyncrl.inference.local_engine.compute import ComputeWeights, LayerTensors
from asyncrl.inference.local_engine.kv_cache import Int64, KVCache

Float32 = NDArray[np.float32]


class _Norms(NamedTuple):
    """A layer's norm weights as the kernels take them; [0] where the model has none."""

    input: Float32
    q: Float32
    k: Float32
    post: Float32


def is_possible(compute: ComputeWeights) -> bool:
    """Whether kernels are there for this model: numba, float32, and sizes that they take UNROLL at a time."""
    c = compute.weights.config
    fits = c.head_dim % kernels.UNROLL == 0 and c.hidden % kernels.UNROLL == 0
    return kernels.HAVE_NUMBA and compute.dtype == torch.float32 and fits


def compile_kernels() -> None:
    """Has numba compile the kernels, or read them from its cache on disk; again it costs nothing.

    Some seconds of one core the first time on a machine. Without numba there is nothing to do.
    """
    if not kernels.HAVE_NUMBA:
        return
    small, one, place = np.float32(1.0), np.ones((1, 8), np.float32), np.zeros(1, np.int64)
    kernels.add_norm(one, one, one[0], small, np.ones_like(one))
    kernels.gate(one, np.ones((1, 4), np.float32))
    kernels.draw(np.ones_like(one), one[0, :1], np.zeros(1, np.bool_), one[0, :1], np.zeros(1, np.int64), one[0, 1:2])
    keys, none = np.zeros((1, 8, 16), np.float32), np.zeros(0, np.float32)
    kernels.attend(
        np.ones((1, 24), np.float32),
        one,
        place,
        place.reshape(1, 1),
        keys,
        keys.reshape(1, 1, 16, 8),
        none,
        none,
        small,
        small,
        np.zeros(16, np.float32),
        np.zeros_like(one),
    )


class FusedDecode:
    """Decode steps over one `ComputeWeights` and one `KVCache`; only where `is_possible`."""

    def __init__(self, compute: ComputeWeights, cache: KVCache, rope: Tensor) -> None:
        """Compiles the kernels, or reads them from numba's cache on disk: some seconds the first time on a machine.

        Args:
            compute: read at every step.
            cache: keys and values; written by every step.
            rope: [max_length, 1, head_dim / 2] complex64, the rotation of each pair by position.
        """
        c = compute.weights.config
        self.compute, self.cache = compute, cache
        self._turns: Float32 = torch.view_as_real(rope).reshape(len(rope), c.head_dim).numpy()
        self._floor, self._head_floor = (np.float32((size * c.rms_eps) ** 0.5) for size in (c.hidden, c.head_dim))
        self._scale = np.float32(c.head_dim**-0.5)
        rows = cache.max_rows
        self._normed, self._attended = torch.zeros(rows, c.hidden), torch.zeros(rows, c.q_size)
        self._inner = torch.zeros(rows, c.intermediate)
        self._score = np.zeros(-(-len(rope) // cache.width) * cache.width, np.float32)
        self._nothing: Float32 = np.zeros((0, c.hidden), np.float32)
        self._norms: list[_Norms] = []
        self._norms_of_refresh = -1
        compile_kernels()

    def decode(self, tokens: Tensor, positions: Int64, num_rows: int) -> Tensor:
        """One step, as `Forward.decode`.

        Args:
            tokens: [N] int64, N a multiple of `compute.pad_rows`; rows from `num_rows` on are padding.
            positions: [N] where each token stands. The cache must own those blocks (`KVCache.extend`).
            num_rows: live rows.
        Returns:
            [N, vocab] float32; padding rows hold garbage.
        """
        compute, linear, num = self.compute, self.compute.linear, len(tokens)
        if self._norms_of_refresh != compute.num_refreshes:
            self._norms, self._norms_of_refresh = [_norms_of(one) for one in compute.layers], compute.num_refreshes
        x: Float32 = F.embedding(tokens, compute.embedding).numpy()
        normed, attended, inner = self._normed[:num], self._attended[:num], self._inner[:num]
        normed_rows, attended_rows, inner_rows = normed.numpy(), attended.numpy(), inner.numpy()
        keys, values, live = self.cache.keys.numpy(), self.cache.values.numpy(), positions[:num_rows]
        added = self._nothing
        for index, (layer, norms) in enumerate(zip(compute.layers, self._norms, strict=True)):
            kernels.add_norm(x, added, norms.input, self._floor, normed_rows)
            qkv = linear(normed, layer.qkv, layer.qkv_bias).numpy()
            kernels.attend(
                qkv,
                self._turns,
                live,
                self.cache.table,
                keys[index],
                values[index],
                norms.q,
                norms.k,
                self._head_floor,
                self._scale,
                self._score,
                attended_rows,
            )
            added = linear(attended, layer.o, layer.o_bias).numpy()
            kernels.add_norm(x, added, norms.post, self._floor, normed_rows)
            kernels.gate(linear(normed, layer.gate_up, layer.gate_up_bias).numpy(), inner_rows)
            added = linear(inner, layer.down, layer.down_bias).numpy()
        kernels.add_norm(x, added, compute.norm.numpy(), self._floor, normed_rows)
        return linear(normed, compute.head, None)


def _norms_of(layer: LayerTensors) -> _Norms:
    none = np.zeros(0, np.float32)
    q, k = (none if norm is None else norm.numpy() for norm in (layer.q_norm, layer.k_norm))
    return _Norms(layer.input_norm.numpy(), q, k, layer.post_norm.numpy())
