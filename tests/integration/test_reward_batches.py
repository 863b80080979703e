"""Reward functions for many answers: those that wait go together, and each gets its own reward or none."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.envs.rewards import Reward
from tests.support.event_loop import in_event_loop
from tests.support.reward_pools import function_pool, opened, row

USER = """
import asyncio, threading

FOREVER = threading.Event()

def compute_score(data_sources, solution_strs, ground_truths, extra_infos):
    if "hang" in solution_strs:
        FOREVER.wait()
    assert len(data_sources) == len(solution_strs) == len(ground_truths) == len(extra_infos)
    if "short" in solution_strs:
        return [1.0, 0.0, 1.0][: len(solution_strs) - 1]
    if "broadcast" in solution_strs:
        return [1.0] * (1 + (len(solution_strs) == 1))
    if "mapping" in solution_strs:
        return {text: 1.0 for text in solution_strs}
    if "text" in solution_strs:
        return "1" * len(solution_strs)
    return [
        {"score": float(text == truth), "size": len(solution_strs)} if text != "nan" else float("nan")
        for text, truth in zip(solution_strs, ground_truths)
    ]

async def compute_async(data_sources, solution_strs, ground_truths, extra_infos=None, **more):
    await asyncio.sleep(0)
    import numpy
    return numpy.array([len(text) for text in solution_strs], dtype=numpy.float32)
"""


@pytest.fixture(scope="module")
def user_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "many.py"
    path.write_text(USER)
    return path


@in_event_loop
async def test_answers_that_wait_go_together_and_each_gets_its_own(user_file: Path) -> None:
    async with opened(function_pool(1, 20, user_file, batch_size=4)) as pool:
        await pool.start()
        texts = ["right", "wrong", "right", "nan", "right", "wrong", "wrong", "right", "right"]
        found = await asyncio.gather(*(pool.score(row(), text) for text in texts))
    assert [reward.value for reward in found] == [1.0, 0.0, 1.0, None, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert found[3].error == "exception: compute_score[2] returned nan, which is not a number to train on"
    sizes = [reward.parts["size"] for reward in found if reward.value is not None]
    assert sizes[0] == 1, "whoever comes first waits for nobody"
    assert max(sizes) == 4, "no more than the limit go together"
    assert pool.counts == {"scored": 8, "exception": 1}


NO_REWARDS = {
    "short": "returned 3 rewards for 4 answers, wanted as many",
    "broadcast": "returned 1 rewards for 4 answers, wanted as many",
    "mapping": "returned dict for 4 answers, wanted a list of 4",
    "text": "returned str for 4 answers, wanted a list of 4",
}


@in_event_loop
async def test_rewards_that_belong_to_no_answer_are_refused(user_file: Path) -> None:
    """B130: too few, one for all, a mapping or a text is never spread over the answers."""
    async with opened(function_pool(1, 20, user_file)) as pool:
        await pool.start()
        for text, said in NO_REWARDS.items():
            first = asyncio.create_task(pool.score(row(), "right"))
            found = await asyncio.gather(*(pool.score(row(), one) for one in (text, "right", "wrong", "right")))
            assert (await first).value == 1.0
            assert [reward.value for reward in found] == [None] * 4, text
            assert all(said in (reward.error or "") for reward in found), found


@in_event_loop
async def test_an_array_is_a_list_and_an_async_function_is_awaited(user_file: Path) -> None:
    async with opened(function_pool(1, 20, user_file, "compute_async")) as pool:
        await pool.start()
        found = await asyncio.gather(*(pool.score(row(), "x" * n) for n in range(1, 5)))
    assert found == [Reward(float(n)) for n in range(1, 5)]


@in_event_loop
async def test_a_batch_that_hangs_costs_its_answers_and_the_next_is_scored(user_file: Path) -> None:
    async with opened(function_pool(1, 0.5, user_file)) as pool:
        await pool.start()
        first = asyncio.create_task(pool.score(row(), "right"))
        late = await asyncio.gather(*(pool.score(row(), text) for text in ("hang", "right")))
        assert (await first).value == 1.0
        assert [reward.error for reward in late] == ["timeout: no reward after 0.5 s"] * 2
        assert (await pool.score(row(), "right")).value == 1.0


@in_event_loop
async def test_who_is_cancelled_takes_nobody_along(user_file: Path) -> None:
    async with opened(function_pool(1, 20, user_file)) as pool:
        await pool.start()
        tasks = [asyncio.create_task(pool.score(row(), "right")) for _ in range(4)]
        await asyncio.wait(tasks, timeout=0, return_when=asyncio.FIRST_COMPLETED)
        tasks[2].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    values = [reward.value if isinstance(reward, Reward) else None for reward in found]
    assert values == [1.0, 1.0, None, 1.0]
