"""The state of all live rows as vectors: a decode step runs no Python per token, only per finished request."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.inference.local_engine import kernels
from asyncrl.inference.local_engine.kv_cache import Int64
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling import BLOCKS_FROM, Filters, sample, uniforms

STOP_IDS = 8
"""Stop ids checked as vectors; a row with more is checked in Python."""


class Rows:
    """Vectors over rows; live rows are the prefix [0, num). `tokens`, a torch tensor, shares memory with its twin."""

    def __init__(self, capacity: int, max_length: int, *, vocab: int, seed: int) -> None:
        self.capacity, self.vocab, self.seed = capacity, vocab, seed
        self.requests: list[Request] = []
        self.positions: Int64 = np.zeros(capacity, dtype=np.int64)  # where the row's newest token stands
        self.num_output: Int64 = np.zeros(capacity, dtype=np.int64)
        self._limit: Int64 = np.zeros(capacity, dtype=np.int64)
        self._token: Int64 = np.zeros(capacity, dtype=np.int64)
        self._stop: Int64 = np.full((capacity, STOP_IDS), -1, dtype=np.int64)
        self._inverse_temperature = np.ones(capacity, dtype=np.float32)
        self._greedy = np.zeros(capacity, dtype=np.bool_)
        self._top_k: Int64 = np.full(capacity, vocab, dtype=np.int64)
        self._top_p, self._min_p = np.ones(capacity, dtype=np.float32), np.zeros(capacity, dtype=np.float32)
        self._uniform = np.zeros((capacity, max_length), dtype=np.float32)
        self._out_token: Int64 = np.zeros((capacity, max_length), dtype=np.int64)
        self._out_logprob = np.zeros((capacity, max_length), dtype=np.float32)
        vectors = (
            *(self.positions, self.num_output, self._limit, self._token, self._stop, self._inverse_temperature),
            *(self._greedy, self._top_k, self._top_p, self._min_p, self._uniform, self._out_token, self._out_logprob),
        )
        self._vectors: tuple[NDArray[np.generic], ...] = vectors
        self.tokens = torch.from_numpy(self._token)
        self._flat_uniform = self._uniform.reshape(-1)
        self._flat_token, self._flat_logprob = self._out_token.reshape(-1), self._out_logprob.reshape(-1)
        self._first_cell: Int64 = np.arange(capacity) * max_length
        self._changed = True
        self._any_greedy = self._any_filter = self._any_temperature = False
        self._stop_width = 0
        self._watched: list[int] = []
        self._early: list[int] = []

    @property
    def num(self) -> int:
        return len(self.requests)

    def place(self, request: Request, stop_ids: frozenset[int]) -> int:
        """Adds a request at the end, with whatever it has already put out (after a retraction)."""
        row, params, done = self.num, request.params, len(request.output)
        self.requests.append(request)
        self.positions[row] = len(request.prompt) + done - 1
        self.num_output[row], self._limit[row] = done, request.limit
        self._stop[row] = -1
        ids = sorted(stop_ids)[:STOP_IDS]
        self._stop[row, : len(ids)] = ids
        self._greedy[row] = params.greedy
        self._inverse_temperature[row] = 1.0 if params.greedy else 1.0 / params.temperature
        self._top_k[row] = params.top_k if params.filters and params.top_k else self.vocab
        self._top_p[row], self._min_p[row] = params.top_p, params.min_p
        seed = (self.seed, request.ordinal) if params.sampling_seed is None else params.sampling_seed
        self._uniform[row, : request.limit] = uniforms(seed, request.limit, len(request.prompt))
        self._out_token[row, :done], self._out_logprob[row, :done] = request.output, request.logprobs
        self._changed = True
        return row

    def remove(self, row: int) -> Request:
        """Takes a row out, its output written back to the request; the last row takes its place."""
        request, last = self.requests[row], self.num - 1
        request.output, request.logprobs = self.output_of(row)
        if row != last:
            for vector in self._vectors:
                vector[row] = vector[last]
            self.requests[row] = self.requests[last]
        self.requests.pop()
        self.positions[last] = 0
        self._changed = True
        return request

    def output_of(self, row: int) -> tuple[list[int], list[float]]:
        num = int(self.num_output[row])
        tokens: list[int] = self._out_token[row, :num].tolist()
        logprobs: list[float] = self._out_logprob[row, :num].tolist()
        return tokens, logprobs

    def last_token(self, row: int) -> int:
        return int(self._token[row])

    def last_logprob(self, row: int) -> float:
        return float(self._out_logprob[row, self.num_output[row] - 1])

    def tail(self, row: int, count: int) -> list[int]:
        """The newest `count` output tokens."""
        num = int(self.num_output[row])
        tokens: list[int] = self._out_token[row, max(0, num - count) : num].tolist()
        return tokens

    def emit(self, logits: Tensor, first: int, count: int) -> NDArray[np.bool_]:
        """Draws the next token of rows [first, first + count) and records it.

        Args:
            logits: [N, vocab] float32; overwritten. Those from `count` on are of padding rows, and nothing is recorded.
            first: row of the first logits.
            count: rows to record.
        Returns:
            [count] bool: at its limit, drew a stop id, or its logprob is NaN.
        """
        self._summarise()
        # A row at its limit of the buffer cannot be here: admission keeps prompt + output within the context.
        tokens, logprobs = self._draw(logits, slice(first, first + len(logits)))
        rows = slice(first, first + count)
        tokens, logprobs, num = tokens[:count], logprobs[:count], self.num_output[rows]
        cells = self._first_cell[rows] + num
        self._flat_token[cells], self._flat_logprob[cells] = tokens, logprobs
        self._token[rows] = tokens
        num += 1
        done: NDArray[np.bool_] = (num >= self._limit[rows]) | np.isnan(logprobs)
        if self._stop_width:
            done |= (tokens[:, None] == self._stop[rows, : self._stop_width]).any(1)
        return done

    def _draw(self, logits: Tensor, rows: slice) -> tuple[Int64, NDArray[np.float32]]:
        """Tokens and logprobs by logits of some rows; by a kernel where it saves more in calls than it costs."""
        uniform = self._flat_uniform[self._first_cell[rows] + self.num_output[rows]]
        if kernels.HAVE_NUMBA and not self._any_filter and self.vocab < BLOCKS_FROM:
            tokens, logprobs = np.empty(len(uniform), np.int64), np.empty(len(uniform), np.float32)
            inverse, greedy = self._inverse_temperature[rows], self._greedy[rows]
            kernels.draw(logits.numpy(), inverse, greedy, uniform, tokens, logprobs)
            return tokens, logprobs
        filters = None
        if self._any_filter:
            filters = Filters(*(torch.from_numpy(one[rows]) for one in (self._top_k, self._top_p, self._min_p)))
        drawn = sample(
            logits,
            torch.from_numpy(self._inverse_temperature[rows]) if self._any_temperature else None,
            torch.from_numpy(uniform),
            greedy=torch.from_numpy(self._greedy[rows]) if self._any_greedy else None,
            filters=filters,
        )
        return drawn[0].numpy(), drawn[1].numpy()

    @property
    def watched(self) -> list[int]:
        """Rows that need a look in Python after every token: streamed, with stop strings, or with many stop ids."""
        self._summarise()
        return self._watched

    @property
    def early(self) -> list[int]:
        """Rows that ask for a least number of tokens."""
        self._summarise()
        return self._early

    def _summarise(self) -> None:
        if not self._changed:
            return
        live = slice(0, self.num)
        self._any_greedy = bool(self._greedy[live].any())
        self._any_temperature = bool((self._inverse_temperature[live] != 1).any())
        self._any_filter = any(request.params.filters for request in self.requests)
        self._stop_width = int((self._stop[live] >= 0).sum(1).max(initial=0))
        self._watched = [
            row
            for row, request in enumerate(self.requests)
            if request.stream_every or request.params.stop or len(request.params.stop_token_ids) >= STOP_IDS
        ]
        self._early = [row for row, request in enumerate(self.requests) if request.params.min_new_tokens]
        self._changed = False
