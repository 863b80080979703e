"""Score a data set's own solutions: a row whose solution is not scored 1 could never be answered right."""

import asyncio
from collections.abc import Sequence

from asyncrl.data.converters import ConvertedRow
from asyncrl.data.report import Finding, Findings
from asyncrl.data.rows import row_from_record
from asyncrl.data.values import excerpt
from asyncrl.envs.rewards import RewardPool
from asyncrl.envs.rewards.guard import FailureLimit

AT_ONCE = 256
"""Rows that are scored together; more would only wait."""
TIMEOUT_S = 30.0


def wrong_solutions(rows: Sequence[ConvertedRow]) -> Findings:
    """Rows whose solution the reward of their data source does not score 1, in order; rows without one are not asked.

    Raises:
        RewardError: a data source has no reward.
    """
    return asyncio.run(_wrong([row for row in rows if row.solution is not None]))


async def _wrong(rows: Sequence[ConvertedRow]) -> Findings:
    found = Findings()
    # A solution that cannot be scored is what is looked for, and stops nothing.
    pool = RewardPool(2, TIMEOUT_S, failures=FailureLimit(max_share=1.0))
    try:
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            rewards = await asyncio.gather(
                *(
                    pool.score(row_from_record(row.values, index=i, prompt_key="prompt")[0], str(row.solution))
                    for i, row in enumerate(some)
                )
            )
            for row, reward in zip(some, rewards, strict=True):
                if reward.value != 1.0:
                    said = reward.error if reward.error is not None else f"is scored {reward.value:g}"
                    found.add(Finding(row.place, "not_right", f"{said}: ...{excerpt(str(row.solution)[-60:])!r}"))
    finally:
        pool.close()
        await pool.close_connections()
    return found
