"""Keys and values of all live rows, in one dense pool of blocks, and the bookkeeping of who owns which block.

A block holds `width` consecutive positions of one row; a row owns a block per started `width` positions. The blocks in
use are a prefix of the pool, in any order, so one batched product serves all rows and nobody computes for the length
of a longer one. The width never changes, so what a row computes does not depend on its batch mates (a product over
another number of positions sums in another order on CPU).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.inference.local_engine.model_config import ModelConfig

Int64 = NDArray[np.int64]

NARROW, WIDE = 64, 128
"""Positions in a block. 64 wastes less on short rows; 128 makes fewer blocks, which is what tiny models pay for."""

STEP = 16
"""A block is no wider than the longest row, rounded up to a multiple of this."""


class KVCache:
    """Block storage for up to `max_rows` rows.

    `keys` is [layers, pool, kv_heads * head_dim, width] (transposed: the score product reads it as it lies), `values`
    is [layers, pool, kv_heads, width, head_dim]. The pool doubles when it is full.
    """

    def __init__(self, config: ModelConfig, max_rows: int, max_length: int, dtype: torch.dtype) -> None:
        self.config, self.max_rows, self.dtype = config, max_rows, dtype
        self.width = min(NARROW if config.kv_size >= 128 else WIDE, -(-max_length // STEP) * STEP)
        self.num_rows = self.num_blocks = 0
        self._table: Int64 = np.full((max_rows, -(-max_length // self.width)), -1, dtype=np.int64)  # [row, level]
        self._levels_of: Int64 = np.zeros(max_rows, dtype=np.int64)
        self._row: Int64 = np.zeros(0, dtype=np.int64)  # [block] -> row
        self._level: Int64 = np.zeros(0, dtype=np.int64)  # [block] -> level
        self.keys, self.values = self._stores(0)

    @property
    def levels(self) -> int:
        """Blocks of the longest live row."""
        return int(self._levels_of[: self.num_rows].max(initial=0))

    @property
    def table(self) -> Int64:
        """[max_rows, levels] the block of each row's level; -1 where there is none."""
        return self._table

    def num_bytes(self) -> int:
        """Bytes of storage held, used or not."""
        return sum(store.numel() * store.element_size() for store in (self.keys, self.values))

    def _stores(self, size: int) -> tuple[Tensor, Tensor]:
        # Zeros, not garbage: a masked position still enters a product with weight 0, and 0 * NaN is NaN.
        c = self.config
        keys = torch.zeros(c.layers, size, c.kv_size, self.width, dtype=self.dtype)
        return keys, torch.zeros(c.layers, size, c.kv_heads, self.width, c.head_dim, dtype=self.dtype)

    def release(self) -> None:
        """Gives the storage back; only without rows. The next `append` allocates again."""
        assert self.num_rows == 0, "releasing the KV cache under live rows"
        self.keys, self.values = self._stores(0)
        self._row, self._level = self._row[:0], self._level[:0]

    def _grow(self) -> None:
        """Doubles the pool: copying stays a constant share of the work."""
        held = len(self._row)
        size = max(2 * held, self.max_rows)
        keys, values = self._stores(size)
        keys[:, :held], values[:, :held] = self.keys, self.values
        self.keys, self.values = keys, values
        self._row, self._level = np.resize(self._row, size), np.resize(self._level, size)

    def append(self, length: int) -> int:
        """Adds a row at the end with room for `length` positions; returns its index."""
        row = self.num_rows
        self.num_rows += 1
        for _ in range(-(-length // self.width)):
            self._give(row)
        return row

    def _give(self, row: int) -> None:
        if self.num_blocks == len(self._row):
            self._grow()
        block, level = self.num_blocks, self._levels_of[row]
        self._table[row, level], self._row[block], self._level[block] = block, row, level
        self._levels_of[row] += 1
        self.num_blocks += 1

    def extend(self, positions: Int64) -> None:
        """Gives a new block to every row whose next position opens one.

        Args:
            positions: [num_rows] the position each row writes next.
        """
        for row in np.flatnonzero(positions % self.width == 0):
            self._give(int(row))

    def remove(self, row: int) -> None:
        """Frees a row's blocks, the pool's last ones moving into the holes; the last row takes the row's index."""
        for level in range(int(self._levels_of[row])):
            block, last = int(self._table[row, level]), self.num_blocks - 1
            if block != last:
                for store in (self.keys, self.values):
                    store[:, block] = store[:, last]
                self._row[block], self._level[block] = self._row[last], self._level[last]
                self._table[self._row[block], self._level[block]] = block
            self.num_blocks -= 1
        self.num_rows -= 1
        last_row = self.num_rows
        if row != last_row:
            self._table[row] = self._table[last_row]
            self._levels_of[row] = self._levels_of[last_row]
            self._row[self.blocks_of(row)] = row
        self._levels_of[last_row] = 0

    def zero(self, row: int) -> None:
        """Clears a row's blocks, for a row whose values are not finite: blocks are reused without clearing."""
        blocks = torch.from_numpy(self.blocks_of(row))
        for store in (self.keys, self.values):
            store[:, blocks] = 0

    def blocks_of(self, row: int) -> Int64:
        """A row's blocks by level."""
        return self._table[row, : int(self._levels_of[row])].copy()

    def blocks_at(self, rows: Int64, level: int) -> Int64:
        """The blocks of one level of several rows."""
        blocks: Int64 = self._table[rows, level]
        return blocks

    def blocks_for(self, positions: Int64) -> Int64:
        """[num_rows] the block in which each row's position lies; the row must own it."""
        blocks: Int64 = self._table[np.arange(len(positions)), positions // self.width]
        return blocks

    def owners(self) -> tuple[Int64, Int64]:
        """Row and level of every block in use."""
        return self._row[: self.num_blocks], self._level[: self.num_blocks]

    def read(self, blocks: Int64, length: int) -> tuple[Tensor, Tensor]:
        """Copies out the first `length` positions of a row that owns these blocks, of more than one block all of them.

        Returns:
            keys [layers, n, kv_size, size] and values [layers, n, kv_heads, size, head_dim].
        """
        index, size = torch.from_numpy(blocks), length if len(blocks) == 1 else self.width
        return self.keys[:, index, :, :size], self.values[:, index, :, :size]

    def write(self, blocks: Int64, content: tuple[Tensor, Tensor]) -> None:
        """Copies content in, as `read` gave it; `blocks` may be several rows' blocks for one row's content repeated."""
        keys, values = content
        index, size = torch.from_numpy(blocks).view(-1, keys.shape[1]), keys.shape[-1]
        self.keys[:, index, :, :size], self.values[:, index, :, :size] = keys.unsqueeze(1), values.unsqueeze(1)
