"""A step's line of metrics, written by rank 0, and the facts that people see of the trainer while it runs."""

import logging
import time
from collections.abc import Mapping, Sequence

from asyncrl import waits
from asyncrl.metrics.timing import Stopwatches, WaitTimes, waiting
from asyncrl.trainer.intake import StepGroups
from asyncrl.trainer.lineage import Lineage
from asyncrl.trainer.metric_names import renamed
from asyncrl.trainer.parts import TrainerParts
from asyncrl.trainer.tally import Tally
from buffer.answers import Entry, LeftGroup
from buffer.errors import BufferError
from buffer.versions import label

log = logging.getLogger(__name__)

HEARTBEAT, HEARTBEAT_S = "trainer's heartbeat", 2.0


class Reporting:
    """Collects what a step measures. Every rank calls it; rank 0 writes."""

    def __init__(self, parts: TrainerParts, lineage: Lineage) -> None:
        self._parts, self._lineage = parts, lineage
        self.watches = Stopwatches()
        self._waits = WaitTimes()
        self._step_began_s = time.perf_counter()
        self._tokens_per_s = 0.0

    def write_step(
        self, tally: Tally, groups: StepGroups, others: Mapping[str, float], *, num_tokens: Sequence[int]
    ) -> None:
        """Reduce over ranks and write one line.

        Args:
            tally: this rank's.
            others: metrics that rank 0 alone has: weight sync, evaluation, counts.
            num_tokens: of the groups of all ranks, prompts included.
        """
        blobs = self._parts.collective.gather(tally.to_bytes())
        if blobs is None:
            return
        whole = Tally()
        for blob in blobs:
            whole.merge(blob)
        seconds, total = self._lap(), sum(num_tokens)
        self._tokens_per_s = total / seconds
        self.write(
            {
                **renamed(whole.values()),
                **_consumed(groups.entries),
                **_left(groups.left),
                **others,
                "training/step": float(self._lineage.step),
                "training/version": float(self._lineage.number),
                "perf/total_num_tokens": float(total),
                "perf/time_per_step": seconds,
                "perf/tokens_per_s": self._tokens_per_s,
                "perf/throughput": self._tokens_per_s / self._parts.collective.world,
                "timing_s/step": seconds,
                **self.watches.drain(),
                **_without_heartbeat(self._waits.drain()),
            }
        )

    def begin(self) -> None:
        """The first step starts now: what was before it is no part of its seconds."""
        self._lap()
        self.watches.drain()

    def write(self, values: Mapping[str, float]) -> None:
        """Write metrics of the step that is finished; on rank 0."""
        for sink in self._parts.sinks:
            sink.write(self._lineage.step, self._lineage.branch, values)

    async def beat(self) -> None:
        """Until cancelled: tell the buffer what the trainer does and waits for, for progress views; on rank 0."""
        while True:
            try:
                counts = await waits.in_thread(self._parts.buffer.counts)
                await waits.in_thread(self._parts.buffer.report, "buffer", counts)
                await waits.in_thread(self._parts.buffer.report, "trainer", self._facts())
            except BufferError as error:
                # Only a view misses it; whoever needs the buffer raises it.
                log.warning("the trainer's report is not delivered: %s", error)
            await waits.pause(HEARTBEAT, HEARTBEAT_S)

    def _facts(self) -> dict[str, float | str]:
        return {
            "step": float(self._lineage.step),
            "version": label(self._lineage.version),
            "tokens_per_s": self._tokens_per_s,
            **waiting(apart_from=(HEARTBEAT,)),
        }

    def _lap(self) -> float:
        now_s = time.perf_counter()
        seconds, self._step_began_s = now_s - self._step_began_s, now_s
        return max(seconds, 1e-9)


def _without_heartbeat(seconds: dict[str, float]) -> dict[str, float]:
    """The heartbeat pauses all the time, beside whatever is waited for."""
    return {name: value for name, value in seconds.items() if not name.endswith(f"/{HEARTBEAT}")}


def _consumed(entries: Sequence[Entry]) -> dict[str, float]:
    """Lag and age of the groups that were trained; by source where there are several."""
    if not entries:
        return {}
    lags, ages = [entry.lag for entry in entries], [entry.age_s for entry in entries]
    values = {
        "buffer/num_groups": float(len(entries)),
        "buffer/num_bytes": float(sum(entry.num_bytes for entry in entries)),
        "buffer/lag_max": float(max(lags)),
        "buffer/lag_mean": sum(lags) / len(lags),
        "buffer/age_s/mean": sum(ages) / len(ages),
        "buffer/age_s/max": max(ages),
    }
    values |= {f"training/off_policy/lag/{lag}": float(lags.count(lag)) for lag in sorted(set(lags))}
    sources = [entry.data_source for entry in entries]
    if len(set(sources)) > 1:
        values |= {f"buffer/num_groups/{source}": float(sources.count(source)) for source in sorted(set(sources))}
    return values


def _left(left: Sequence[LeftGroup]) -> dict[str, float]:
    """Groups that left instead of being trained, with their lengths: dropping by age selects short answers."""
    values = {"buffer/num_left": float(len(left))}
    for reason in sorted({group.reason for group in left}):
        groups, prefix = [group for group in left if group.reason == reason], f"buffer/left/{reason}"
        values[f"{prefix}/groups"] = float(len(groups))
        values[f"{prefix}/discarded"] = float(sum(group.outcome == "discarded" for group in groups))
        values[f"{prefix}/lag_max"] = float(max(group.lag for group in groups))
        values |= _length(f"{prefix}/response_length/mean", groups)
        sources = sorted({group.data_source for group in groups})
        for source in sources if len(sources) > 1 else ():
            of_source = [group for group in groups if group.data_source == source]
            values[f"{prefix}/groups/{source}"] = float(len(of_source))
            values |= _length(f"{prefix}/response_length/{source}/mean", of_source)
    return values


def _length(name: str, groups: Sequence[LeftGroup]) -> dict[str, float]:
    """Mean sampled tokens of an answer; nothing without answers."""
    lengths = [length for group in groups for length in group.sampled]
    return {name: sum(lengths) / len(lengths)} if lengths else {}
