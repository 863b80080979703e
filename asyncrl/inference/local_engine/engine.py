"""Continuous batching: who runs, one decode step for all of them, who is done. Used from one thread only.

consumes  requests, from engine_loop          waits for     nothing: a tick does what there is to do
produces  finished requests and progress      unblocks      service, through engine_loop
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncrl.inference.local_engine.compute import ComputeWeights
from asyncrl.inference.local_engine.forward import Forward, padded
from asyncrl.inference.local_engine.kv_cache import KVCache
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.prefix_cache import PrefixCache
from asyncrl.inference.local_engine.prompts import Prompts
from asyncrl.inference.local_engine.request import QUEUE_ABORT, FinishReason, Request, aborted
from asyncrl.inference.local_engine.rows import Rows
from asyncrl.inference.local_engine.text import TextCodec


@dataclass(frozen=True)
class EngineSettings:
    """Sizes and seed of one engine."""

    max_running: int = 64
    """Requests decoded together; others wait."""

    context_length: int = 2048
    """Most tokens of prompt and output together."""

    prefill_tokens: int = 8192
    """Prompt tokens computed in one tick, at least one prompt: what bounds its memory and the others' wait."""

    prefix_cache_bytes: int = 256 << 20
    """Budget for keys and values of recent prompts; 0 shares only among prompts admitted in the same tick."""

    hold_ticks: int = 8
    """Most ticks that free rows wait for company: one prefill of four prompts costs little more than of one."""

    seed: int = 0
    """Draws of requests without a sampling_seed follow from this and their order of arrival."""


class Progress(NamedTuple):
    """What a streamed request has put out so far."""

    request: Request
    output: list[int]
    logprobs: list[float]


@dataclass
class TickReport:
    """What one tick produced."""

    finished: list[Request] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)


class Engine:
    """Waiting requests, live rows, and the step over them. Nothing here blocks or locks."""

    def __init__(
        self, model: LocalModel, compute: ComputeWeights, settings: EngineSettings, text: TextCodec | None = None
    ) -> None:
        capacity = padded(settings.max_running, compute.pad_rows)
        self.model, self.compute, self.settings, self.text = model, compute, settings, text
        self.cache = KVCache(model.config, capacity, settings.context_length, compute.dtype)
        self.forward = Forward(compute, self.cache, settings.context_length)
        self.rows = Rows(capacity, settings.context_length, vocab=model.config.vocab, seed=settings.seed)
        self.prefixes = PrefixCache(settings.prefix_cache_bytes)
        self.prompts = Prompts(self.forward, self.cache, self.prefixes)
        self.waiting: deque[Request] = deque()
        self.version = "default"
        self.num_sampled = 0
        self._num_added = 0
        self._held = 0
        self._aborting: dict[Request, FinishReason] = {}

    @property
    def idle(self) -> bool:
        return not self.rows.num and not self.waiting

    # ---- what others may do between two ticks --------------------------------------------------------------------
    def add(self, request: Request) -> None:
        """Queues a checked request."""
        request.ordinal = self._num_added
        self._num_added += 1
        self.waiting.append(request)

    def abort(self, matches: Callable[[Request], bool]) -> list[Request]:
        """Ends matching requests.

        Returns:
            Those that were waiting, finished. Running ones finish at the next tick: never while paused, as in SGLang.
        """
        ended = [request for request in self.waiting if matches(request)]
        for request in ended:
            self.waiting.remove(request)
            request.mark_version(self.version, len(request.output))
            request.finish = {"type": "abort", "message": QUEUE_ABORT}
        for request in self.rows.requests:
            if matches(request):
                self._aborting.setdefault(request, aborted())
        return ended

    @torch.inference_mode()  # as the steps that made the blocks which move here: no other mode may write to them
    def retract(self) -> list[Request]:
        """Moves every live row back to the front of the queue, keys and values dropped, tokens and logprobs kept.

        Returns:
            Those that were being aborted, finished, as in SGLang.
        """
        report = TickReport()
        self._end_aborted(report)
        for row in reversed(range(self.rows.num)):
            request = self._take(row)
            request.num_retractions += 1
            self.waiting.appendleft(request)
        return report.finished

    def set_version(self, version: str) -> None:
        """Tokens sampled from now on carry this weight version."""
        self.version = version
        for row, request in enumerate(self.rows.requests):
            request.mark_version(version, int(self.rows.num_output[row]))

    def flush(self) -> bool:
        """Forgets all cached prompts; refused (False) while rows hold keys and values."""
        if self.rows.num:
            return False
        self.prefixes.clear()
        return True

    def release_cache(self) -> None:
        """Gives back the memory of keys and values; only without rows."""
        self.prefixes.clear()
        self.cache.release()

    # ---- one step ------------------------------------------------------------------------------------------------
    @torch.inference_mode()
    def tick(self) -> TickReport:
        """Ends aborted rows, admits and prefills what fits, and decodes one token for every live row."""
        report = TickReport()
        if self._aborting:
            self._end_aborted(report)
        if self.waiting:
            self.compute.refresh()
            if batch := self._next_batch():
                self._admit(batch, report)
        if self.rows.num:
            self.compute.refresh()
            self._decode(report)
        return report

    def run(self, requests: Sequence[Request]) -> list[Request]:
        """Adds requests and ticks until all are finished; for tests and benchmarks."""
        for request in requests:
            self.add(request)
        while not all(request.finish for request in requests):
            self.tick()
        return list(requests)

    def _next_batch(self) -> list[Request]:
        free = self.settings.max_running - self.rows.num
        if not free:
            return []
        wanted = min(free, len(self.waiting))
        # A lone prompt's prefill costs nearly a decode step of everyone: let a few rows come free first, but not long.
        enough = wanted == len(self.waiting) or wanted * 8 >= self.settings.max_running or not self.rows.num
        if not enough and self._held < self.settings.hold_ticks:
            self._held += 1
            return []
        self._held = 0
        batch: list[Request] = []
        budget = self.settings.prefill_tokens
        while self.waiting and len(batch) < free:
            size = len(self.waiting[0].prompt) + len(self.waiting[0].output)
            if batch and size > budget:
                break
            budget -= size
            batch.append(self.waiting.popleft())
        return batch

    def _admit(self, batch: list[Request], report: TickReport) -> None:
        first = self.rows.num
        for request in batch:
            self.cache.append(len(request.prompt) + len(request.output))
            self.rows.place(request, self._stop_ids(request))
            request.mark_version(self.version, len(request.output))
        hidden = self.prompts.compute(batch, first)
        count = len(batch)
        logits = self.forward.logits(torch.stack(hidden))
        self._ban_early_stops(logits, first)
        done = self.rows.emit(logits, first, count)
        self.num_sampled += count
        self._settle(first, done, report)

    def _decode(self, report: TickReport) -> None:
        num = self.rows.num
        width = padded(num, self.compute.pad_rows)
        self.rows.positions[:num] += 1
        self.rows.positions[num:width] = 0
        self.cache.extend(self.rows.positions[:num])
        logits = self.forward.decode(self.rows.tokens[:width], self.rows.positions[:width], num)
        self._ban_early_stops(logits, 0)
        done = self.rows.emit(logits, 0, num)
        self.num_sampled += num
        self._settle(0, done, report)

    # ---- ends ----------------------------------------------------------------------------------------------------
    def _stop_ids(self, request: Request) -> frozenset[int]:
        # SGLang's trap, kept: ignore_eos silences stop_token_ids as well.
        if request.params.ignore_eos:
            return frozenset()
        return request.params.stop_token_ids | self.model.config.eos_ids

    def _ban_early_stops(self, logits: Tensor, first: int) -> None:
        """Forbids stop ids to rows [first, ...) that are still below their least number of tokens."""
        for row in self.rows.early:
            request = self.rows.requests[row]
            if row >= first and request.params.min_new_tokens > self.rows.num_output[row]:
                banned = request.params.stop_token_ids | self.model.config.eos_ids
                logits[row - first, [token for token in banned if 0 <= token < logits.shape[1]]] = -math.inf

    def _settle(self, first: int, done: NDArray[np.bool_], report: TickReport) -> None:
        """Retires what is done among rows [first, first + len(done)), just emitted; reports progress of streams."""
        ended: set[int] = set((first + np.flatnonzero(done)).tolist())
        matched: dict[int, str] = {}
        for row in self.rows.watched:
            if first <= row < first + len(done) and row not in ended:
                self._watch(row, ended, matched, report)
        for row in sorted(ended | matched.keys(), reverse=True):
            reason = self._reason(row, matched.get(row))
            request = self._take(row)
            if request.limit == 0:
                request.output, request.logprobs = [], []
            request.finish = reason
            report.finished.append(request)

    def _watch(self, row: int, ended: set[int], matched: dict[int, str], report: TickReport) -> None:
        request, num = self.rows.requests[row], int(self.rows.num_output[row])
        stop = self._matched_stop(row, request)
        if stop is not None:
            matched[row] = stop
        elif self.rows.last_token(row) in self._stop_ids(request):
            ended.add(row)
        elif request.stream_every and (num == 1 or num % request.stream_every == 0):
            report.progress.append(Progress(request, *self.rows.output_of(row)))

    def _matched_stop(self, row: int, request: Request) -> str | None:
        if self.text is None or not request.params.stop:
            return None
        return self.text.find_stop(request.params.stop, lambda count: self.rows.tail(row, count))

    def _reason(self, row: int, matched: str | None) -> FinishReason:
        request, num = self.rows.requests[row], int(self.rows.num_output[row])
        if math.isnan(self.rows.last_logprob(row)):
            self.cache.zero(row)
            return aborted("the model's logits are NaN; its weights or this prompt's values overflowed", 500, "NaN")
        # SGLang looks at the length first: a stop id drawn as the last allowed token ends with "length".
        if num >= request.limit:
            return {"type": "length", "length": request.limit}
        return {"type": "stop", "matched": self.rows.last_token(row) if matched is None else matched}

    def _take(self, row: int) -> Request:
        self.cache.remove(row)
        request = self.rows.remove(row)
        self._aborting.pop(request, None)
        return request

    def _end_aborted(self, report: TickReport) -> None:
        for row in reversed(range(self.rows.num)):
            reason = self._aborting.get(self.rows.requests[row])
            if reason is not None:
                request = self._take(row)
                request.finish = reason
                report.finished.append(request)
        self._aborting.clear()
