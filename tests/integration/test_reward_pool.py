"""Rewards in real processes: hanging, crashing and lying functions cost their trajectory and nothing else."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from asyncrl.envs.rewards import Reward, RewardPool
from asyncrl.envs.rewards.guard import FailureLimit
from asyncrl.errors import RewardError
from tests.support.event_loop import in_event_loop
from tests.support.reward_pools import function_pool, opened, row
from tests.support.worker_cluster import until

USER = """
import asyncio, os, signal, subprocess, threading
from pathlib import Path

FOREVER = threading.Event()

async def compute_async(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0)
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "note": "text"}

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("user code may print")
    if solution_str == "hang":
        FOREVER.wait()
    if solution_str == "hang with child":
        child = subprocess.Popen(["sleep", "1000"])
        Path(extra_info["pid_file"]).write_text(str(child.pid))
        FOREVER.wait()
    if solution_str == "hold the lock":
        return 9 ** 9 ** 9
    if solution_str == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if solution_str == "exit":
        raise SystemExit(3)
    if solution_str == "bug":
        return extra_info["answer"]
    if solution_str == "nan":
        return float("nan")
    if solution_str == "list":
        return [1.0]
    if solution_str == "pid":
        return os.getpid()
    if solution_str == "exact":
        return extra_info["seed"] == 2 ** 64
    return solution_str == ground_truth

def wrong_signature(text):
    return 1.0
"""


@pytest.fixture(scope="module")
def user_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "reward.py"
    path.write_text(USER)
    return path


async def scores(pool: RewardPool, texts: Sequence[str]) -> list[Reward]:
    return list(await asyncio.gather(*(pool.score(row(), text) for text in texts)))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A killed child of a killed parent may stay a zombie until somebody reaps it.
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@in_event_loop
async def test_every_failure_is_an_error_with_its_reason_and_never_a_zero(user_file: Path) -> None:
    """A function that raises (B118) or returns no number (B130, B131) has scored nothing."""
    async with opened(function_pool(1, 20, user_file)) as pool:
        found = await scores(pool, ["right", "wrong", "bug", "nan", "list", "exit", "crash", "right"])
    assert [reward.value for reward in found] == [1.0, 0.0, None, None, None, None, None, 1.0]
    errors = [reward.error or "" for reward in found]
    assert errors[2].startswith("exception: KeyError: 'answer' (reward.py:")
    assert errors[3] == "exception: compute_score returned nan, which is not a number to train on"
    assert "returned list of 1 items" in errors[4]
    assert errors[5].startswith("exception: SystemExit")
    assert errors[6] == f"died: the scoring process ended with code {-signal.SIGSEGV}"
    assert pool.counts == {"scored": 3, "exception": 4, "died": 1}


@in_event_loop
async def test_hanging_calls_are_killed_and_the_others_are_scored(user_file: Path) -> None:
    """A timeout ends the work, not only the wait for it, so that no worker stays occupied (B116); it is no 0 (B117)."""
    async with opened(function_pool(2, 1, user_file)) as pool:
        await scores(pool, ["right", "right"])  # start both processes: starting is not what is timed here
        start = time.monotonic()
        found = await scores(pool, ["hang", "hang", "hang", "right", "right", "right", "right"])
        took_s = time.monotonic() - start
    assert [reward.value for reward in found] == [None, None, None, 1.0, 1.0, 1.0, 1.0]
    assert [reward.error for reward in found[:3]] == ["timeout: no reward after 1 s"] * 3
    assert pool.counts["timeout"] == 3
    assert took_s < 20  # three restarts on a busy machine; without kills it would be for ever


@in_event_loop
async def test_a_call_that_holds_the_interpreter_lock_is_killed_too(user_file: Path) -> None:
    async with opened(function_pool(1, 0.5, user_file)) as pool:
        assert [reward.value for reward in await scores(pool, ["hold the lock", "right"])] == [None, 1.0]


@in_event_loop
async def test_what_a_hanging_function_started_dies_with_it(user_file: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with opened(function_pool(1, 1, user_file)) as pool:
        reward = await pool.score(row(pid_file=str(pid_file)), "hang with child")
        assert reward.value is None
        await until(lambda: not alive(int(pid_file.read_text())))  # it is killed at once, and dies when the kernel may


@in_event_loop
async def test_a_cancelled_call_takes_its_process_along_and_the_next_gets_its_own_answer(user_file: Path) -> None:
    async with opened(function_pool(1, 60, user_file)) as pool:
        first = (await pool.score(row(), "pid")).value
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.score(row(), "hang")
        second = (await pool.score(row(), "pid")).value
        assert first != second
        assert (await pool.score(row(), "wrong")).value == 0.0


@in_event_loop
async def test_a_process_is_kept_for_the_next_call_and_unused_ones_never_start(user_file: Path) -> None:
    async with opened(function_pool(4, 20, user_file)) as pool:
        pids = {(await pool.score(row(), "pid")).value for _ in range(3)}
    assert len(pids) == 1
    pid = int(pids.pop() or 0)
    assert not alive(pid)
    with pytest.raises(RewardError, match="closed"):
        await pool.score(row(), "right")


@in_event_loop
async def test_async_functions_and_parts_and_exact_integers_pass(user_file: Path) -> None:
    async with opened(function_pool(1, 20, user_file, "compute_async")) as pool:
        await pool.start()
        assert await pool.score(row(), "right") == Reward(1.0, None, {"length": 5.0})
    async with opened(function_pool(1, 20, user_file)) as pool:
        assert (await pool.score(row(seed=2**64), "exact")).value == 1.0


@pytest.mark.parametrize(
    ("content", "function", "words"),
    [
        (None, "compute_score", "does not exist"),
        (
            "raise RuntimeError('no licence')",
            "compute_score",
            r"cannot be loaded: RuntimeError: no licence \(reward.py:1",
        ),
        ("x = 1", "compute_score", r"has no function 'compute_score'.*rollout\.reward\.function"),
        (USER, "wrong_signature", r"cannot be called with data_source, .* nor with data_sources, "),
    ],
)
def test_a_broken_user_file_is_refused_before_anything_is_scored(
    tmp_path: Path, content: str | None, function: str, words: str
) -> None:
    path = tmp_path / "reward.py"
    if content is not None:
        path.write_text(content)

    async def start() -> None:
        async with opened(function_pool(1, 20, path, function)) as pool:
            await pool.start()

    with pytest.raises(RewardError, match=words):
        asyncio.run(start())


@in_event_loop
async def test_a_function_that_always_fails_stops_the_run_with_its_reason(user_file: Path) -> None:
    """A bug in it is no flat run of zeros (B118)."""
    async with opened(function_pool(1, 20, user_file, failures=FailureLimit(0.8, 5))) as pool:
        for _ in range(4):
            assert (await pool.score(row(), "bug")).value is None
        assert (await pool.score(row(), "right")).value == 1.0
        for _ in range(4):
            await pool.score(row(), "bug")
        with pytest.raises(RewardError, match=r"scorer 'file' failed for 5 of its last 5 answers.*KeyError: 'answer'"):
            await pool.score(row(), "bug")


@in_event_loop
async def test_no_free_process_in_time_is_an_error_of_that_call(user_file: Path) -> None:
    async with opened(function_pool(1, 5, user_file, queue_s=0.2)) as pool:
        await pool.start()
        hanging = asyncio.create_task(pool.score(row(), "hang"))
        await asyncio.wait([hanging], timeout=0.05)
        late = await pool.score(row(), "right")
        assert late.error == "no reward process was free for 0.2 s"
        hanging.cancel()
        await asyncio.wait([hanging])
    assert pool.counts == {"queue_full": 1}


@in_event_loop
async def test_math_is_scored_in_a_process_and_cheap_rules_start_none() -> None:
    async with opened(RewardPool(1, timeout_s=10)) as pool:
        assert (await pool.score(row("1258", "sort_digits"), "1258")).value == 1.0
        assert (await pool.score(row("no number", "gsm8k"), "#### 1")).error is not None
        assert (await pool.score(row("72", "math"), r"\boxed{72}")).value == 1.0
        with pytest.raises(RewardError, match=r"no reward is known for data_source 'mine'.*rollout\.reward\.file"):
            await pool.score(row(), "x")
