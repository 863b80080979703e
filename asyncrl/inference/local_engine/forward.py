"""The transformer itself: one decode step for all live rows, and a packed prefill for the new ones.

What makes a row's numbers independent of its batch mates, bit for bit, on CPU (tests/unit/.../test_batch_mates.py):
rows of a product padded to a multiple of `compute.pad_rows` (MKL takes other kernels for few rows, how few depends on
the CPU), prompts padded to `PAD_TOKENS` and attended in groups of equal padded length (SDPA tiles by the longest), keys
and values in blocks of one width (`kv_cache`). The decode step here is for bfloat16, and for where numba is missing;
else it is that of `fused`, where a row never meets another but in a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.inference.local_engine import fused
from asyncrl.inference.local_engine.compute import ComputeWeights, LayerTensors
from asyncrl.inference.local_engine.kv_cache import Int64, KVCache

PAD_TOKENS = 8

Attend = Callable[[Tensor], Tensor]
"""qkv rows [N, q_size + 2 kv_size], rotated -> [N, q_size]; also writes keys and values into the cache."""


def padded(count: int, multiple: int) -> int:
    """`count` rounded up to a multiple."""
    return -(-count // multiple) * multiple


def rms_norm(x: Tensor, scaled_weight: Tensor, floor: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension d, in float32, at half the calls of `F.rms_norm`.

    Args:
        x: [..., d].
        scaled_weight: [d] float32, the weight times sqrt(d).
        floor: scalar float32, sqrt(d * eps): hypot(norm, floor) = sqrt(d) * sqrt(mean(x^2) + eps).
    Returns:
        [..., d] in the dtype of x.
    """
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return wide.div(torch.hypot(length, floor)).mul_(scaled_weight).to(x.dtype)


@dataclass(frozen=True)
class _Step:
    """What the attention of every layer of one decode step shares.

    `slot` and `offset` are where each live row writes its key and value. The rest is by block: the mask, and its owner
    as row and level. `scores` [rows, heads, levels, width] and `outputs` [levels, rows, q_size] hold -inf and 0 where a
    row has no such level, and stay so: every layer overwrites the present cells only. None when no row has two blocks
    and block i is row i's.
    """

    num_rows: int
    slot: Tensor
    offset: Tensor
    mask: Tensor
    row: Tensor
    level: Tensor
    scores: Tensor | None
    outputs: Tensor | None


@dataclass(frozen=True)
class _Group:
    """Prompts of one padded length, adjacent in a packed prefill."""

    start: int
    stop: int
    count: int
    length: int
    slots: list[Tensor]


class Forward:
    """Forward passes over one `ComputeWeights` and one `KVCache`."""

    def __init__(self, compute: ComputeWeights, cache: KVCache, max_length: int) -> None:
        self.config, self.compute, self.cache = compute.weights.config, compute, cache
        self._rope = self._rope_table(max_length)
        self._masks = self._mask_table()
        c = self.config
        self._floor = torch.tensor((c.hidden * c.rms_eps) ** 0.5)
        self._head_floor = torch.tensor((c.head_dim * c.rms_eps) ** 0.5)
        self._fused = fused.FusedDecode(compute, cache, self._rope) if fused.is_possible(compute) else None

    @property
    def decodes_with(self) -> str:
        """What computes a decode step between its products: "numba" or "torch"."""
        return "torch" if self._fused is None else "numba"

    def _rope_table(self, max_length: int) -> Tensor:
        """[max_length, 1, head_dim / 2] complex64: the rotation of each pair of numbers of a head at each position."""
        half = torch.arange(0, self.config.head_dim, 2).float() / self.config.head_dim
        angles = torch.outer(torch.arange(max_length).float(), 1.0 / self.config.rope_theta**half)
        return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)

    def _mask_table(self) -> Tensor:
        """[width + 1, kv_heads, 1, width]: row t opens the first t positions of a block."""
        width = self.cache.width
        closed = torch.arange(width).unsqueeze(0) >= torch.arange(width + 1).unsqueeze(1)
        table = torch.zeros(width + 1, width).masked_fill_(closed, float("-inf")).to(self.compute.dtype)
        return table.view(width + 1, 1, 1, width).repeat(1, self.config.kv_heads, 1, 1)

    # ---- one layer -----------------------------------------------------------------------------------------------
    def _layer(self, x: Tensor, layer: LayerTensors, rope: Tensor, attend: Attend) -> Tensor:
        c, linear = self.config, self.compute.linear
        num_rotated = c.heads + c.kv_heads
        qkv = linear(rms_norm(x, layer.input_norm, self._floor), layer.qkv, layer.qkv_bias)
        qk = qkv[:, : num_rotated * c.head_dim].view(x.shape[0], num_rotated, c.head_dim)
        if layer.q_norm is not None and layer.k_norm is not None:
            qk[:, : c.heads] = rms_norm(qk[:, : c.heads], layer.q_norm, self._head_floor)
            qk[:, c.heads :] = rms_norm(qk[:, c.heads :], layer.k_norm, self._head_floor)
        wide = qk.float()
        # `compute` laid out the numbers of a head so that those which turn together are neighbours.
        torch.view_as_complex(wide.view(x.shape[0], num_rotated, -1, 2)).mul_(rope)
        if wide is not qk:
            qk.copy_(wide)
        x = x + linear(attend(qkv), layer.o, layer.o_bias)
        gate_up = linear(rms_norm(x, layer.post_norm, self._floor), layer.gate_up, layer.gate_up_bias)
        inner = F.silu(gate_up[:, : c.intermediate]).mul_(gate_up[:, c.intermediate :])
        return x + linear(inner, layer.down, layer.down_bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] of the last layer -> [N, vocab] float32."""
        count = len(hidden)
        missing = padded(count, self.compute.pad_rows) - count
        if missing:
            hidden = torch.cat([hidden, hidden[:1].expand(missing, -1)])
        normed = rms_norm(hidden, self.compute.norm, self._floor)
        return self.compute.linear(normed, self.compute.head, None)[:count].float()

    # ---- decode --------------------------------------------------------------------------------------------------
    def decode(self, tokens: Tensor, positions: Int64, num_rows: int) -> Tensor:
        """One step: every row's token goes in at its position, logits for its next token come out.

        Args:
            tokens: [N] int64, N a multiple of `compute.pad_rows`; rows from `num_rows` on are padding.
            positions: [N] where each token stands; 0 for padding rows. The cache must own those blocks (`extend`).
            num_rows: live rows.
        Returns:
            [N, vocab] float32; padding rows hold garbage.
        """
        if self._fused is not None:
            return self._fused.decode(tokens, positions, num_rows)
        step = self._step(positions, num_rows)
        x, rope = F.embedding(tokens, self.compute.embedding), self._rope[torch.from_numpy(positions)]
        for layer, keys, values in zip(self.compute.layers, self.cache.keys, self.cache.values, strict=True):
            x = self._layer(x, layer, rope, partial(self._attend_step, step, keys, values))
        return self.logits(x)

    def _step(self, positions: Int64, num_rows: int) -> _Step:
        c, cache, n, width = self.config, self.cache, len(positions), self.cache.width
        groups, levels = c.heads // c.kv_heads, self.cache.levels
        row, level = cache.owners()
        in_row_order = levels == 1 and np.array_equal(row, np.arange(num_rows))
        # In row order, padding rows take the blocks behind the live ones along and see the first position only.
        num_open = positions + 1
        if not in_row_order:
            num_open = np.minimum(positions[row] - level * width + 1, width)
        shape = (n, c.heads, levels, width)
        return _Step(
            num_rows=num_rows,
            slot=torch.from_numpy(cache.blocks_for(positions[:num_rows])),
            offset=torch.from_numpy(positions[:num_rows] % width),
            mask=self._masks[torch.from_numpy(num_open)].view(-1, 1, width).expand(-1, groups, -1),
            row=torch.from_numpy(row),
            level=torch.from_numpy(level),
            scores=None if in_row_order else torch.full(shape, float("-inf"), dtype=cache.dtype),
            outputs=None if in_row_order else torch.zeros(levels, n, c.q_size, dtype=cache.dtype),
        )

    def _attend_step(self, step: _Step, keys: Tensor, values: Tensor, qkv: Tensor) -> Tensor:
        c, width, n, live = self.config, self.cache.width, qkv.shape[0], step.num_rows
        groups, scale = c.heads // c.kv_heads, c.head_dim**-0.5
        keys[step.slot, :, step.offset] = qkv[:live, c.q_size : c.q_size + c.kv_size]
        values[step.slot, :, step.offset] = qkv[:live, c.q_size + c.kv_size :].view(live, c.kv_heads, c.head_dim)
        # The query heads of one kv head are its "query rows": no expansion of keys, one batched product for all blocks.
        query = qkv[:, : c.q_size]
        query = query.contiguous() if step.scores is None else query.index_select(0, step.row)
        num_blocks = query.shape[0]
        key = keys[:num_blocks].view(-1, c.head_dim, width)
        value = values[:num_blocks].view(-1, width, c.head_dim)
        score = torch.baddbmm(step.mask, query.view(-1, groups, c.head_dim), key, alpha=scale)
        if step.scores is None or step.outputs is None:
            return torch.bmm(torch.softmax(score, -1), value).view(n, c.q_size)
        step.scores[step.row, :, step.level] = score.view(num_blocks, c.heads, width)
        weight = torch.softmax(step.scores.flatten(2), -1).view_as(step.scores)[step.row, :, step.level]
        product = torch.bmm(weight.view(-1, groups, width), value)
        step.outputs[step.level, step.row] = product.view(num_blocks, c.q_size)
        # By level, so that the order of a row's sum does not depend on where its blocks lie.
        return step.outputs.sum(0)

    # ---- prefill -------------------------------------------------------------------------------------------------
    def prefill(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[Tensor]:
        """Computes whole prompts, packed, and writes their keys and values.

        Args:
            rows: cache rows, each already given its blocks (`KVCache.append`).
            tokens: one non-empty list of token ids per row.
        Returns:
            Per row the hidden states [padded length, hidden]; those past the prompt are padding.
        """
        order = sorted(range(len(rows)), key=lambda i: padded(len(tokens[i]), PAD_TOKENS))
        lengths = [padded(len(tokens[i]), PAD_TOKENS) for i in order]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        num_rows = padded(int(starts[-1]), self.compute.pad_rows)
        ids, at = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=np.int64)
        for index, start, length in zip(order, starts, lengths, strict=False):
            ids[start : start + len(tokens[index])] = tokens[index]
            at[start : start + length] = np.arange(length)
        groups = self._groups([rows[i] for i in order], lengths, starts)
        x, rope = F.embedding(torch.from_numpy(ids), self.compute.embedding), self._rope[torch.from_numpy(at)]
        for layer, keys, values in zip(self.compute.layers, self.cache.keys, self.cache.values, strict=True):
            x = self._layer(x, layer, rope, self._attend_prefill(keys, values, groups))
        hidden: list[Tensor] = [x] * len(rows)
        for index, start, length in zip(order, starts, lengths, strict=False):
            hidden[index] = x[start : start + length]
        return hidden

    def _groups(self, rows: list[int], lengths: list[int], starts: Int64) -> list[_Group]:
        out, first = [], 0
        for length, members in groupby(lengths):
            count = len(list(members))
            mine = np.array(rows[first : first + count])
            levels = range(-(-length // self.cache.width))
            slots = [torch.from_numpy(self.cache.blocks_at(mine, level)) for level in levels]
            out.append(_Group(int(starts[first]), int(starts[first + count]), count, length, slots))
            first += count
        return out

    def _attend_prefill(self, keys: Tensor, values: Tensor, groups: list[_Group]) -> Attend:
        c, width = self.config, self.cache.width

        def attend(qkv: Tensor) -> Tensor:
            out = qkv.new_zeros(qkv.shape[0], c.q_size)  # rows behind the last prompt belong to no group
            for group in groups:
                mine = qkv[group.start : group.stop].view(group.count, group.length, -1, c.head_dim).transpose(1, 2)
                query, key, value = torch.split(mine, [c.heads, c.kv_heads, c.kv_heads], 1)
                for level, slot in enumerate(group.slots):
                    part = slice(level * width, min((level + 1) * width, group.length))
                    size = part.stop - part.start
                    keys[slot, :, :size] = key[:, :, part].transpose(2, 3).reshape(group.count, c.kv_size, size)
                    values[slot, :, :size] = value[:, :, part]
                mixed = F.scaled_dot_product_attention(
                    query, key, value, is_causal=True, enable_gqa=c.heads != c.kv_heads
                )
                out[group.start : group.stop] = mixed.transpose(1, 2).reshape(group.stop - group.start, c.q_size)
            return out

        return attend
