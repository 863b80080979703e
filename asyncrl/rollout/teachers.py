"""Finished trajectories with what teachers say of their sampled tokens, as columns of their rows.

`teacher/<name>/logprobs` is [T] float32, nats; with top_k, `teacher/<name>/topk_logprobs` is [T, K] float32 and
`teacher/<name>/topk_ids` [T, K] int32. Sampled tokens have values, all others 0. A teacher that fails costs the
trajectory its reward, as a reward that fails does: it is masked and counted, and nothing stands in for the scores.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from asyncrl.inference.scoring import Scores
from asyncrl.rollout.teacher import NotScored, Teacher
from buffer import Row, Trajectory

Columns = Mapping[str, npt.NDArray[np.generic]]


class Teachers:
    """The teachers of a run, in the order of the configuration."""

    def __init__(self, teachers: Sequence[Teacher]) -> None:
        self._teachers = teachers

    async def ready(self, deadline_s: float) -> None:
        """Wait until all of them answer. Raises WaitTimeout."""
        for teacher in self._teachers:
            await teacher.ready(deadline_s)

    async def score(self, data_source: str, trajectory: Trajectory) -> Trajectory:
        """The trajectory with the columns of every teacher of its data source; without a reward if one has none.

        Raises:
            ServerError: a teacher fails always.
        """
        asked = [
            teacher for teacher in self._teachers if not teacher.data_sources or data_source in teacher.data_sources
        ]
        if not asked:
            return trajectory
        found = await asyncio.gather(*(_rows_by(teacher, trajectory) for teacher in asked))
        columns: list[dict[str, npt.NDArray[np.generic]]] = [dict(row.columns) for row in trajectory.rows]
        failures = []
        for teacher, scored in zip(asked, found, strict=True):
            if isinstance(scored, NotScored):
                failures.append(f"teacher {teacher.name}: {scored.reason}: {scored.message}")
                continue
            for own, of_teacher in zip(columns, scored, strict=True):
                own.update(of_teacher)
        rows = tuple(replace(row, columns=own) for row, own in zip(trajectory.rows, columns, strict=True))
        if not failures:
            return replace(trajectory, rows=rows)
        errors = [*([] if trajectory.reward_error is None else [trajectory.reward_error]), *failures]
        return replace(trajectory, rows=rows, reward=None, reward_error="; ".join(errors))

    async def close(self) -> None:
        """End what is asked and close connections."""
        for teacher in self._teachers:
            await teacher.close()


async def _rows_by(teacher: Teacher, trajectory: Trajectory) -> list[Columns] | NotScored:
    """One teacher's columns of every row, or why there are none: a trajectory that is scored in part is not scored."""
    rows = [_of_row(teacher, row) for row in trajectory.rows]
    found = await asyncio.gather(*rows, return_exceptions=True)
    columns: list[Columns] = []
    for one in found:
        if isinstance(one, NotScored):
            return one
        if isinstance(one, BaseException):
            raise one
        columns.append(one)
    return columns


async def _of_row(teacher: Teacher, row: Row) -> Columns:
    sampled = np.flatnonzero(row.mask)
    # The first token of a row has nothing before it that a model could predict it from; it is not trained either.
    first, end = (max(int(sampled[0]), 1), int(sampled[-1]) + 1) if len(sampled) else (0, 0)
    if first >= end:
        return _columns(teacher, row, first, first, _nothing(teacher.top_k))
    return _columns(teacher, row, first, end, await teacher.score(row.token_ids[:end].tolist(), first))


def _columns(teacher: Teacher, row: Row, first: int, end: int, scores: Scores) -> Columns:
    mask, length, prefix = row.mask[first:end], len(row.token_ids), f"teacher/{teacher.name}"
    logprobs_T = np.zeros(length, dtype=np.float32)
    logprobs_T[first:end] = np.where(mask, scores.logprobs_S, 0)
    if not teacher.top_k:
        return {f"{prefix}/logprobs": logprobs_T}
    top_logprobs_TK = np.zeros((length, teacher.top_k), dtype=np.float32)
    top_ids_TK = np.zeros((length, teacher.top_k), dtype=np.int32)
    top_logprobs_TK[first:end] = np.where(mask[:, None], scores.top_logprobs_SK, 0)
    top_ids_TK[first:end] = np.where(mask[:, None], scores.top_ids_SK, 0)
    return {
        f"{prefix}/logprobs": logprobs_T,
        f"{prefix}/topk_logprobs": top_logprobs_TK,
        f"{prefix}/topk_ids": top_ids_TK,
    }


def _nothing(top_k: int) -> Scores:
    return Scores(
        np.zeros(0, dtype=np.float32), np.zeros((0, top_k), dtype=np.float32), np.zeros((0, top_k), dtype=np.int32)
    )
