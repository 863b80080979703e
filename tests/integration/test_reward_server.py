"""Rewards of a server over HTTP: a number to train on or a failure with its reason, and nothing in between."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncrl.config.reward import RewardServerConfig
from asyncrl.data.rows import PromptRow
from asyncrl.envs.rewards import Reward, RewardPool, endpoint, limits
from asyncrl.envs.rewards.endpoint import MAX_BYTES
from asyncrl.envs.rewards.guard import FailureLimit
from asyncrl.envs.rewards.http import RewardServer
from asyncrl.envs.rewards.processes import FunctionScorer
from asyncrl.envs.rewards.routes import Route
from asyncrl.errors import RewardError
from tests.support.event_loop import in_event_loop
from tests.support.reward_server import DROP, HANG, ScriptedServer, scripted_server


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE_S", 0.0)


def row(source: str = "essays") -> PromptRow:
    return PromptRow(0, source, ({"role": "user", "content": "q"},), "truth", {"index": 3, "big": 2**70})


@asynccontextmanager
async def pool_of(server: ScriptedServer, timeout_s: float = 20.0, **settings: object) -> AsyncIterator[RewardPool]:
    failures = settings.pop("failures", None)
    config = RewardServerConfig(url=server.url, data_sources=("essays",), **settings)  # type: ignore[arg-type]  # by name
    scorers = RewardServer("server-1", config, timeout_s), FunctionScorer("table", 1, timeout_s)
    pool = RewardPool(
        scorers={scorer.name: scorer for scorer in scorers},
        routes=[Route.to("server-1", config.data_sources), Route.to("table")],
        failures=failures,  # type: ignore[arg-type]
    )
    try:
        yield pool
    finally:
        pool.close()
        await pool.close_connections()


async def scored(server: ScriptedServer, timeout_s: float = 20.0, **settings: object) -> Reward:
    async with pool_of(server, timeout_s, **settings) as pool:
        return await pool.score(row(), "answer")


@in_event_loop
async def test_the_answer_goes_out_with_its_row_and_a_score_with_parts_comes_back() -> None:
    with scripted_server((200, {"score": 0.25, "style": 1, "note": "fine"})) as server:
        reward = await scored(server)
    assert reward == Reward(0.25, None, {"style": 1.0})
    assert server.requests == [
        {
            "data_source": "essays",
            "prompt": [{"role": "user", "content": "q"}],
            "solution_str": "answer",
            "ground_truth": "truth",
            "extra_info": {"index": 3, "big": 2**70},
        }
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"score": NaN}', "which is not a number to train on"),
        (b'{"score": Infinity}', "which is not a number to train on"),
        ({"score": "10"}, "returned str, wanted one number"),
        ({"score": None}, "returned NoneType"),
        ({"reward": 1.0}, "without 'score' (keys: 'reward')"),
        ([1.0, 0.0], "returned list of 2 items"),
        (b"Reward: 10", "which is no JSON"),
        (b"[" * 100_000, "which is no JSON"),
        (b"0" * (MAX_BYTES + 1), "more than 1048576 bytes"),
    ],
)
@in_event_loop
async def test_a_reply_that_is_no_score_is_a_failed_reward_and_not_asked_for_again(body: object, said: str) -> None:
    """What is almost a number is not read as one (B121), nor a list for many (B130), nor a text (B131)."""
    with scripted_server((200, body)) as server:
        reward = await scored(server)
    assert reward.value is None
    assert reward.error is not None
    assert reward.error.startswith("bad_reply: ")
    assert said in reward.error
    assert len(server.requests) == 1


@pytest.mark.parametrize("trouble", [(503, {}), (429, {}), (500, b"oops"), DROP])
@in_event_loop
async def test_a_server_that_is_busy_or_fails_is_asked_again(trouble: object) -> None:
    with scripted_server(trouble, trouble) as server:
        assert (await scored(server)).value == 6.0
    assert len(server.requests) == 3


@in_event_loop
async def test_a_server_that_fails_every_time_is_a_failed_reward_with_the_last_reason() -> None:
    with scripted_server((500, {}), (500, {}), (503, b"overloaded")) as server:
        reward = await scored(server, max_attempts=3)
    assert reward.error is not None
    assert reward.error.startswith("unreachable: 3 attempts; the last: ")
    assert "status 503: overloaded" in reward.error


@in_event_loop
async def test_a_server_that_nobody_runs_is_a_failed_reward() -> None:
    with scripted_server() as server:
        pass
    reward = await scored(server, max_attempts=2)
    assert reward.error is not None
    assert reward.error.startswith("unreachable: 2 attempts")


@in_event_loop
async def test_a_reply_that_comes_too_late_is_a_timeout_and_not_a_zero() -> None:
    """B117."""
    with scripted_server(HANG) as server:
        reward = await scored(server, timeout_s=0.2, max_attempts=1)
    assert reward.value is None
    assert reward.error == f"timeout: 1 attempts; the last: no reply of {server.url} in 0.2 s"


@in_event_loop
async def test_a_refused_answer_is_not_sent_again() -> None:
    with scripted_server((422, {"detail": "too long"})) as server:
        reward = await scored(server)
    assert reward.error is not None
    assert reward.error.startswith("refused: ")
    assert "status 422" in reward.error
    assert len(server.requests) == 1


@in_event_loop
async def test_a_worker_has_only_so_many_requests_at_once_and_counts_how_they_went() -> None:
    with scripted_server((422, {})) as server:
        async with pool_of(server, in_flight=3) as pool:
            rewards = await asyncio.gather(*(pool.score(row(), "x" * n) for n in range(1, 21)))
            assert pool.counts == {"scored": 19, "refused": 1}
    assert sum(reward.value is None for reward in rewards) == 1
    assert 1 <= server.most_at_once <= 3


@in_event_loop
async def test_a_server_that_never_scores_ends_the_run_instead_of_masking_everything() -> None:
    """B118."""
    with scripted_server(*[(422, {})] * 4) as server:
        async with pool_of(server, failures=FailureLimit(0.9, 3)) as pool:
            for _ in range(2):
                await pool.score(row(), "answer")
            with pytest.raises(RewardError, match="scorer 'server-1' failed for 3 of its last 3 answers"):
                await pool.score(row(), "answer")


@in_event_loop
async def test_other_data_sources_keep_their_own_rewards() -> None:
    """B187: the server stays what scores its own sources, whatever else is set up."""
    with scripted_server() as server:
        async with pool_of(server) as pool:
            assert (await pool.score(row("arithmetic"), "7")).error is not None
            assert (await pool.score(PromptRow(0, "arithmetic", (), "7", {}), "7")).value == 1.0
    assert server.requests == []


@in_event_loop
async def test_a_password_in_the_address_is_sent_and_not_shown() -> None:
    with scripted_server((200, b"{}"), (422, {}), (500, {})) as server:
        server.url = server.url.replace("http://", "http://rater:secret@")
        errors = []
        async with pool_of(server, max_attempts=1) as pool:
            for _ in range(3):
                errors.append((await pool.score(row(), "x")).error or "")
    assert [error.split(":")[0] for error in errors] == ["bad_reply", "refused", "unreachable"]
    assert all(header["Authorization"].startswith("Basic ") for header in server.headers)
    assert not any("secret" in error for error in errors), errors


@in_event_loop
async def test_a_server_that_says_when_to_come_back_is_not_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def pause(name: str, pause_s: float) -> None:
        waited.append(pause_s)

    monkeypatch.setattr(endpoint, "pause", pause)
    with scripted_server((429, {}), (429, {}), (429, {})) as server:
        server.retry_after.extend(["7", "9999", "Wed, 21 Oct 2026 07:28:00 GMT"])
        async with pool_of(server) as pool:
            assert (await pool.score(row(), "answer")).value == 6.0
    assert waited == [7.0, 60.0, 0.0]


@in_event_loop
async def test_no_more_requests_a_minute_than_the_limit_retries_included(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    now = [0.0]

    async def pause(name: str, pause_s: float, why: object = None) -> None:
        waited.append(pause_s)
        now[0] += pause_s

    monkeypatch.setattr(limits, "pause", pause)
    with scripted_server((503, {})) as server:
        config = RewardServerConfig(url=server.url, requests_per_minute=4)
        scorer = RewardServer("rm", config, 20.0, share=limits.Share(2), clock=lambda: now[0])
        try:
            found = [await scorer.score(row(), "x" * n) for n in range(1, 4)]
        finally:
            await scorer.close()
    assert [outcome.reward.value for outcome in found] == [1.0, 2.0, 3.0]
    assert waited == [60.0], "four requests, two a minute for this worker"
