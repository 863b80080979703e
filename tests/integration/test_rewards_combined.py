"""Several scorers for one answer: a weighted sum with its parts, and nobody waits for the one that hangs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.reward import RewardConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards import Reward, RewardPool
from asyncrl.errors import RewardError
from asyncrl.report import scorers
from tests.support.event_loop import in_event_loop
from tests.support.reward_pools import opened
from tests.support.reward_server import HANG, scripted_server

FUNCTIONS = """
import os, signal, threading

def length(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if solution_str == "hang":
        threading.Event().wait()
    return {"score": len(solution_str), "letters": len(solution_str)}
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def config(functions: Path, **more: Any) -> RewardConfig:
    tree = {
        "functions": [{"name": "length", "file": str(functions), "function": "length"}],
        "combine": [
            {
                "data_sources": ["sort_digits"],
                "scorers": [{"scorer": "table"}, {"scorer": "length", "weight": -0.25}],
            }
        ],
        "workers": 1,
        "timeout_s": 0.5,
        **more,
    }
    return RewardConfig.model_validate_json(json.dumps(tree))


def row(source: str = "sort_digits", truth: str = "1234") -> PromptRow:
    return PromptRow(0, source, ({"role": "user", "content": "sort 4321"},), truth, {})


@in_event_loop
async def test_a_combination_is_the_weighted_sum_and_keeps_each_score_as_a_part(functions: Path) -> None:
    async with opened(RewardPool.of(config(functions))) as pool:
        await pool.start()
        assert await pool.score(row(), "1234") == Reward(
            0.0, None, {"table": 1.0, "length": 4.0, "length/letters": 4.0}, answer="1234"
        )
        assert (await pool.score(row(), "12")).value == -0.5
        assert await pool.score(row("arithmetic", "7"), "7") == Reward(1.0, answer="7"), (
            "other sources are scored as ever"
        )


@in_event_loop
async def test_one_that_fails_fails_the_reward_and_keeps_nobody_else(functions: Path) -> None:
    async with opened(RewardPool.of(config(functions))) as pool:
        await pool.start()
        stuck = asyncio.create_task(pool.score(row(), "hang"))
        while pool.calls["table"].num_calls < 1:
            await asyncio.wait([stuck], timeout=0.01)
        others = await asyncio.gather(*(pool.score(row("arithmetic", "7"), "7") for _ in range(100)))
        assert not stuck.done(), "the others did not wait for it"
        assert all(reward == Reward(1.0, answer="7") for reward in others)
        assert (await stuck).error == "length: timeout: no reward after 0.5 s"
        crashed = await pool.score(row(), "crash")
        assert (crashed.value, crashed.error) == (None, "length: died: the scoring process ended with code -9")
        assert pool.calls["length"].outcomes == {"timeout": 1, "died": 1}
        assert pool.calls["table"].num_failed == 0


@in_event_loop
async def test_a_server_that_hangs_keeps_only_those_who_need_it(functions: Path) -> None:
    with scripted_server(HANG) as server:
        own = config(
            functions, servers=[{"url": server.url, "name": "rm", "data_sources": ["essays"], "max_attempts": 1}]
        )
        async with opened(RewardPool.of(own)) as pool:
            late = asyncio.create_task(pool.score(row("essays"), "x"))
            assert (await pool.score(row("arithmetic", "7"), "7")).value == 1.0
            assert ((await late).error or "").startswith("timeout: 1 attempts")
            assert (await pool.score(row("essays"), "xyz")).value == 3.0
            assert (await pool.score(row("essays"), "xyz")).value == 3.0
    assert len(server.requests) == 2, "the second is from the cache"
    assert (pool.calls["rm"].num_calls, pool.calls["rm"].num_cached) == (2, 1)


@in_event_loop
async def test_a_scorer_that_fails_too_often_stops_the_run_by_its_name(functions: Path) -> None:
    own = config(functions, max_failure_share=0.5, failure_window=4, timeout_s=20.0)
    async with opened(RewardPool.of(own)) as pool:
        for text in ("crash", "1", "crash", "1"):
            await pool.score(row(), text)
        await pool.score(row(), "1")
        for _ in range(2):
            assert (await pool.score(row(), "crash")).value is None, "two of the last four are allowed"
        with pytest.raises(RewardError, match=r"scorer 'length' failed for 3 of its last 4 answers.*died: .*ended"):
            await pool.score(row(), "crash")
        assert (await pool.score(row("arithmetic", "7"), "7")).value == 1.0


@in_event_loop
async def test_the_table_of_scorers_has_calls_failures_and_times(functions: Path) -> None:
    async with opened(RewardPool.of(config(functions))) as pool:
        for text in ("1234", "hang", "12"):
            await pool.score(row(), text)
        fact = scorers.as_fact(pool.calls)
    summary = scorers.summary_of(scorers.from_fact(fact))
    assert summary["length"]["calls"] == 3
    assert summary["length"]["failed"] == {"timeout": 1}
    assert summary["length"]["p99_s"] >= 0.5
    assert summary["table"]["failed"] == {}
    lines = dict(scorers.rows_of(summary))
    assert "1 FAILED (1 timeout): timeout: no reward after 0.5 s" in lines["scorer length"]
    assert lines["scorer table"].startswith("3 calls, half within ")
