"""Held-out evaluation: opens a ledger of its own, waits for the answers to its prompts, turns them into metrics.

consumes  groups of held-out prompts      waits for     all of them, in order
                                          unblocked by  rollout.worker, put
produces  val-core/ metrics, samples      unblocks      rollout.worker, by opening and closing the ledger
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from asyncrl import waits
from asyncrl.errors import WaitTimeout
from asyncrl.metrics.held_out import measure
from asyncrl.trainer.sweeper import Sweeper
from buffer import Group, ReplayBuffer
from buffer.answers import Entry, Leased
from buffer.errors import CorruptPayload, UnknownSchema
from buffer.versions import label, unpack

log = logging.getLogger(__name__)

BESIDE = "an evaluation goes on beside training"
NAME, OPEN, CLOSE = "trainer waits for evaluation", "evaluation opens its ledger", "evaluation closes its ledger"
STEP = 0  # a ledger of evaluation has one batch


class Evaluation:
    """Evaluates versions of one run."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        *,
        num_prompts: int,
        group_size: int,
        pass_reward: float,
        deadline_s: float,
        samples_dir: Path,
        num_samples: int,
        stopping: Callable[[], bool],
    ) -> None:
        """Nothing is opened yet.

        Args:
            num_prompts: held-out prompts.
            group_size: answers to each.
            pass_reward: smallest reward of an answer that passes, for pass@k.
            deadline_s: seconds one evaluation may take.
            samples_dir: where some answers are written as text, one file an evaluation.
            num_samples: how many.
            stopping: once true it ends the wait; the evaluation is then left out.
        """
        self._buffer, self._num_prompts, self._group_size = buffer, num_prompts, group_size
        self._pass_reward, self._deadline_s, self._stopping = pass_reward, deadline_s, stopping
        self._samples_dir, self._num_samples = samples_dir, num_samples

    async def run(
        self, version: int, name: str, *, server: str | None = None, why_never: Callable[[], str] = lambda: ""
    ) -> dict[str, float]:
        """Evaluate `version`, and write samples to `<name>.jsonl`.

        Args:
            version: packed; head, unless `server` stays at it.
            server: who plays it alone, beside training; None: whoever has the version, and the trainer waits.
            why_never: asked now and then, the reason why the answers will not come; empty while they may. Blocks.
        Returns:
            Metrics; empty if a stop was asked for, or if the answers did not come in time or never will, which is
            logged: training goes on without them.
        """
        if self._num_prompts == 0:
            return {}
        start_s = time.monotonic()
        ledger = await waits.blocking(
            OPEN,
            lambda: self._buffer.open_evaluation(
                version, num_prompts=self._num_prompts, group_size=self._group_size, server=server
            ),
        )
        try:
            groups = await self._groups(ledger, version, NAME if server is None else BESIDE, why_never)
        except WaitTimeout as late:
            log.warning("evaluation of version %s is left out: %s", label(version), late)
            return {}
        finally:
            await waits.blocking(CLOSE, self._buffer.close_evaluation, version)
        if not groups:
            return {}
        self._write_samples(groups, version, name)
        values = scores(groups, self._num_prompts, self._group_size, version, pass_reward=self._pass_reward)
        return values | {"val-aux/version": float(version), "timing_s/evaluation": time.monotonic() - start_s}

    async def _groups(self, ledger: ReplayBuffer, version: int, wait: str, why_never: Callable[[], str]) -> list[Group]:
        hints, sweeper = ledger.hints(), Sweeper(ledger)

        def attempt() -> list[Group] | None:
            if self._stopping():
                return []
            if reason := why_never():
                log.warning("evaluation of version %s: %s", label(version), reason)
                return []
            sweeper.sweep()
            return fetch_all(ledger, version, self._num_prompts)

        def why() -> str:
            return f"{self._num_prompts} held-out prompts; {_states(ledger.counts())}; is serve-rollout running?"

        groups = await waits.until(wait, attempt, why=why, wake=hints.wait, deadline_s=self._deadline_s)
        if not groups:
            log.warning("evaluation of version %s is left out: no group, or their wait was ended", label(version))
        return groups

    def _write_samples(self, groups: Sequence[Group], version: int, name: str) -> None:
        self._samples_dir.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps(
                {
                    "version": label(version),
                    "ordinal": group.ordinal,
                    "data_source": group.data_source,
                    "prompt": trajectory.extra_info.get("prompt_text", ""),
                    "response": trajectory.extra_info.get("response_text", ""),
                    "reward": trajectory.reward,
                    "finish_reason": trajectory.finish_reason,
                },
                ensure_ascii=False,
            )
            for group in groups[: self._num_samples]
            for trajectory in group.trajectories[:1]
        ]
        text = "".join(line + "\n" for line in lines)
        (self._samples_dir / f"{name}.jsonl").write_text(text, encoding="utf-8")


def fetch_all(ledger: ReplayBuffer, version: int, num_prompts: int) -> list[Group] | None:
    """Every group that can still come, in ordinal order; None while some are missing.

    Groups that died or were discarded do not come: the evaluation is of the others, and says so. A damaged payload
    goes back and is made again.
    """
    branch, number = unpack(version)
    counts = ledger.counts()
    expected = num_prompts - sum(counts.get(state, 0) for state in ("dead", "discarded", "filtered"))
    if expected <= 0:
        return []
    leased = ledger.lease(branch, number, STEP, expected)
    if not isinstance(leased, Leased):
        return None
    groups, damaged = _fetch(leased.entries, ledger.fetch)
    if damaged:
        ledger.give_back(branch, damaged, "corrupt_payload")
        return None
    return groups


def _fetch(entries: Iterable[Entry], fetch: Callable[[Entry], Group]) -> tuple[list[Group], list[int]]:
    groups, damaged = [], []
    for entry in entries:
        try:
            groups.append(fetch(entry))
        except (CorruptPayload, UnknownSchema) as error:
            log.warning("held-out group %s: %s", entry.gid, error)
            damaged.append(entry.ordinal)
    return groups, damaged


def scores(
    groups: Sequence[Group], num_prompts: int, group_size: int, version: int, *, pass_reward: float = 1.0
) -> dict[str, float]:
    """Metrics of held-out groups (see metrics.held_out), and what they leave out.

    Returns:
        With them val-aux/missing_prompts, and val-aux/other_version_frac if a token is of another version.
    """
    spans = [span for group in groups for t in group.trajectories for row in t.rows for span in row.spans]
    tokens = sum(span.num_tokens for span in spans)
    other = sum(span.num_tokens for span in spans if span.version != version)
    values = {"val-aux/missing_prompts": float(num_prompts - len(groups))}
    if other:
        log.warning("%d of %d held-out tokens were not sampled by version %s", other, tokens, label(version))
        values["val-aux/other_version_frac"] = other / tokens
    prompts = [(group.data_source, group.trajectories) for group in groups]
    return values | measure(prompts, group_size=group_size, pass_reward=pass_reward)


def _states(counts: dict[str, int]) -> str:
    return " ".join(f"{state}={count}" for state, count in counts.items() if count)
