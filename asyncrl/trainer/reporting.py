"""A step's line of metrics, written by rank 0, and the facts that people see of the trainer while it runs."""

import logging
from collections.abc import Mapping, Sequence

from asyncrl import waits
from asyncrl.metrics.phases import Phases, phase
from asyncrl.metrics.timing import Stopwatches, WaitTimes, waiting
from asyncrl.report.kv_age import KvAges
from asyncrl.trainer import group_metrics, masked, step_times
from asyncrl.trainer.evaluation import BESIDE
from asyncrl.trainer.flops import FLOPS, RECOMPUTED, UPDATE, utilisation
from asyncrl.trainer.intake import StepGroups
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.parts import TrainerParts
from asyncrl.trainer.peaks import peak_flops
from asyncrl.trainer.step_times import OF_WAIT
from asyncrl.trainer.tally import Tally
from buffer.errors import BufferError
from buffer.versions import label

log = logging.getLogger(__name__)

HEARTBEAT, HEARTBEAT_S = "trainer's heartbeat", 2.0
SILENT_MS = 10_000.0  # workers report every 2 s; one that is gone counts no more after this


class Reporting:
    """Collects what a step measures. Every rank calls it; rank 0 writes."""

    def __init__(self, parts: TrainerParts, lineage: Lineage) -> None:
        self._parts, self._lineage = parts, lineage
        self.watches = Stopwatches()
        self._waits, self._phases, self._kv_ages = WaitTimes(), Phases(OF_WAIT), KvAges()
        self._tokens_per_s = self._generated_per_s = 0.0
        config = parts.config
        self._peak = peak_flops(parts.collective.device, config.model.dtype, config.trainer.peak_tflops)

    @phase("report")
    def write_step(
        self, tally: Tally, groups: StepGroups, others: Mapping[str, float], *, num_tokens: Sequence[int]
    ) -> dict[str, int]:
        """Reduce over ranks and write one line.

        Args:
            tally: this rank's.
            others: metrics that rank 0 alone has: weight sync, evaluation, counts.
            num_tokens: of the groups of all ranks, prompts included.
        Returns:
            Data source -> sampled tokens of all ranks that were kept out of the loss; on rank 0.
        """
        own = tally if self._parts.collective.place.counts else Tally()
        blobs = self._parts.collective.gather(own.to_bytes())
        if blobs is None:
            return {}
        whole = Tally()
        for blob in blobs:
            whole.merge(blob)
        entries = group_metrics.answers(groups.entries, self._parts.config.rollout.n)
        left = group_metrics.answers(groups.left, self._parts.config.rollout.n)
        lap_s, by_phase = self._phases.lap()
        seconds, total = max(lap_s, 1e-9), sum(num_tokens)
        self._tokens_per_s, world = total / seconds, self._parts.collective.world
        values = whole.values()
        flops, recomputed = (values.pop(name, 0.0) for name in (FLOPS, RECOMPUTED))
        self.write(
            {
                **renamed(values),
                **group_metrics.consumed(entries),
                **group_metrics.left(left, entries),
                **others,
                "training/step": float(self._lineage.step),
                "training/version": float(self._lineage.number),
                "perf/total_num_tokens": float(total),
                "perf/time_per_step": seconds,
                "perf/tokens_per_s": self._tokens_per_s,
                "perf/throughput": self._tokens_per_s / world,
                "perf/sampled_tokens_per_s": sum(map(sum, (entry.sampled for entry in entries))) / seconds,
                "perf/generated_tokens_per_s": self._generated_per_s,
                **self._kv_ages.drain(),
                **utilisation(flops, recomputed, by_phase.get(UPDATE, 0.0), world, self._peak),
                "timing_s/step": seconds,
                **step_times.of_step(seconds, by_phase),
                "perf/publish_blocks_step_share": others.get("timing_s/publish_blocked", 0.0) / seconds,
                **self.watches.drain(),
                **_without_heartbeat(self._waits.drain()),
            }
        )
        return masked.by_source(values)

    def begin(self) -> None:
        """The first step starts now, in the task that calls this: what was before it is no part of its seconds."""
        self._phases.begin()
        self.watches.drain()

    def write(self, values: Mapping[str, float]) -> None:
        """Write metrics of the step that is finished; on rank 0."""
        self.write_of(self._lineage.step, values)

    def write_of(self, step: int, values: Mapping[str, float]) -> None:
        """Write metrics of a step of this branch, the last one or one before it; on rank 0."""
        for sink in self._parts.sinks:
            sink.write(step, self._lineage.branch, values)

    async def beat(self) -> None:
        """Until cancelled: tell the buffer what the trainer does and waits for, for progress views; on rank 0."""
        while True:
            try:
                counts = await waits.in_thread(self._parts.buffer.counts)
                await waits.in_thread(self._parts.buffer.report, "buffer", counts)
                await waits.in_thread(self._parts.buffer.report, "trainer", self._facts())
                reports = await waits.in_thread(self._parts.buffer.reports)
                self._generated_per_s = generated(reports)
                self._kv_ages.update(reports)
            except BufferError as error:
                # Only a view misses it; whoever needs the buffer raises it.
                log.warning("the trainer's report is not delivered: %s", error)
            await waits.pause(HEARTBEAT, HEARTBEAT_S)

    def _facts(self) -> dict[str, float | str]:
        return {
            "step": float(self._lineage.step),
            "version": label(self._lineage.version),
            "tokens_per_s": self._tokens_per_s,
            **waiting(apart_from=(HEARTBEAT, BESIDE)),
        }


def generated(reports: Mapping[str, Mapping[str, float | str]]) -> float:
    """Tokens a second of all workers that have reported in the last seconds."""
    newest_ms = max((float(facts.get("at_ms", 0.0)) for facts in reports.values()), default=0.0)
    rates = (
        facts.get("tokens_per_s", 0.0)
        for source, facts in reports.items()
        if source not in ("trainer", "buffer") and newest_ms - float(facts.get("at_ms", 0.0)) <= SILENT_MS
    )
    return sum(rate for rate in rates if not isinstance(rate, str))


def _without_heartbeat(seconds: dict[str, float]) -> dict[str, float]:
    """The heartbeat pauses all the time, beside whatever is waited for."""
    return {name: value for name, value in seconds.items() if not name.endswith(f"/{HEARTBEAT}")}
