"""A gateway over real HTTP: harnesses play reserved groups and online sessions; tokens are those that were sampled."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from asyncrl import waits
from asyncrl.rollout.gateway import gateway
from buffer import BufferConfig, Group, ReplayBuffer, StalenessConfig
from buffer.answers import Leased
from buffer.versions import label, pack
from tests.support.ascii_chat import AsciiChat
from tests.support.event_loop import in_event_loop
from tests.support.fast_engine import Settings, running_engine
from tests.support.gateway_cluster import KEY, SIGN, SIGN_ID, running_gateway
from tests.support.worker_cluster import until

VERSION = pack(1, 0)
CALL = '<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call>'
LOOK: dict[str, Any] = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with running_engine(
        Settings(tokens_per_s=100_000.0, answer_tokens=500, sign_id=SIGN_ID, label=label(VERSION))
    ) as url:
        yield url


@pytest.fixture(scope="module")
def slow_engine() -> Iterator[str]:
    """One that needs minutes for an answer."""
    with running_engine(Settings(tokens_per_s=0.1, sign_id=SIGN_ID, label=label(VERSION))) as url:
        yield url


@pytest.fixture
def buffer() -> ReplayBuffer:
    made = ReplayBuffer.in_memory("run", BufferConfig(), StalenessConfig())
    assert made.recover("nonce", None, number=0, limit=1, groups_per_version=1) == 1
    return made


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def lease(buffer: ReplayBuffer, step: int = 0) -> Group:
    """The next group, as the trainer has it."""
    hints = buffer.hints("ready")

    def attempt() -> Leased | None:
        answer = buffer.lease(1, 0, step, 1)
        return answer if isinstance(answer, Leased) else None

    leased = await waits.until("test", attempt, why=str, wake=hints.wait, deadline_s=20.0)
    return await waits.in_thread(buffer.fetch, leased.entries[0])


def sampled_text(group: Group, member: int, row: int = 0) -> str:
    tokens = group.trajectories[member].rows[row]
    ids = [id for id, sampled in zip(tokens.token_ids.tolist(), tokens.mask, strict=True) if sampled]
    return AsciiChat().decode([id for id in ids if id != 2])


@in_event_loop
async def test_two_harnesses_play_a_group_and_the_trainer_gets_the_tokens_that_were_sampled(
    engine: str, buffer: ReplayBuffer
) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        one, other = await asyncio.gather(scene.reserve(), scene.reserve())
        assert (one["ordinal"], {one["episode"], other["episode"]}) == (0, {0, 1})
        assert one["messages"] == [user("sort 31")]
        assert buffer.counts()["in_flight"] == 1, "no prompt is reserved that nobody asked for"
        grown = [user(f"sort 31 {SIGN}{CALL}")]
        called = await scene.chat(one, grown, tools=[LOOK])
        assert called["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "it"}'}
        answer_of_tool = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": f"{SIGN}13"}
        grown += [called, answer_of_tool]
        assert (await scene.chat(one, grown, tools=[LOOK]))["content"] == "13"
        await scene.chat(other, [user(f"sort 31 {SIGN}31")])
        assert (await scene.end(one)).json()["turns"] == 2, "its reward is computed"
        assert (await scene.end(other, reward=0.25, reward_parts={"form": 1})).status_code == 200
        group = await lease(buffer)
    first, second = sorted(group.trajectories, key=lambda member: -member.num_turns)
    assert (first.reward, first.num_turns, first.finish_reason) == (1.0, 2, "stop")
    assert (second.reward, dict(second.reward_parts), len(second.rows)) == (0.25, {"form": 1.0}, 1)
    assert sampled_text(group, group.trajectories.index(first)) == f"{CALL}13"
    assert {span.version for row in first.rows for span in row.spans} == {VERSION}
    assert buffer.audit().ok


@in_event_loop
async def test_a_group_is_given_back_at_no_cost_when_no_harness_takes_its_other_sessions(
    engine: str, buffer: ReplayBuffer
) -> None:
    async with running_gateway(buffer, [engine], version=VERSION, offer_timeout_s=0.2) as scene:
        session = await scene.reserve()
        await scene.chat(session, [user(f"{SIGN}1")])
        await scene.end(session, reward=1.0)
        await until(lambda: scene.gateway.counts["sessions_untaken"] == 1)
        await until(lambda: buffer.counts()["waiting"] == 1)
        reply = await scene.post("/v1/chat/completions", {"model": "any", "messages": [user("a")]}, session["api_key"])
        assert reply.status_code == 401
        assert "expired" in reply.json()["error"]["message"]
        assert scene.worker.facts()["groups_given_up"] == 1
    assert not buffer.audit().problems


@in_event_loop
async def test_a_runner_may_play_the_sessions_of_a_group_one_after_the_other(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION, offer_timeout_s=1.5) as scene:
        for _ in range(2):
            session = await scene.reserve()
            await scene.chat(session, [user(f"{SIGN}1")])
            await waits.pause("test: a session that lasts", 1.8)
            await scene.end(session, reward=1.0)
        assert (await lease(buffer)).ordinal == 0
        assert scene.gateway.counts["sessions_untaken"] == 0


@in_event_loop
async def test_a_session_that_nobody_ends_is_masked_and_its_group_goes_on(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION, idle_timeout_s=0.3) as scene:
        one, other = await asyncio.gather(scene.reserve(), scene.reserve())
        await scene.chat(one, [user(f"{SIGN}1")])
        await scene.chat(other, [user(f"{SIGN}2")])
        await scene.end(other, reward=1.0)
        group = await lease(buffer)
        assert scene.gateway.counts["sessions_timed_out"] == 1
    rewards = {member.reward: member.reward_error for member in group.trajectories}
    assert rewards[1.0] is None
    assert "gateway.idle_timeout_s" in str(rewards[None])


@in_event_loop
async def test_a_session_without_an_answer_fails_its_group(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        one, _ = await asyncio.gather(scene.reserve(), scene.reserve())
        await scene.end(one, reward_error="the harness could not start")
        await until(lambda: buffer.counts()["waiting"] == 1)
        assert scene.worker.facts()["failed_session_without_turn"] == 1


@in_event_loop
async def test_online_sessions_are_put_when_their_rewards_come(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        for name in ("alice-1", "bob"):
            body = {"model": "any", "messages": [user(f"{SIGN}{name}")]}
            reply = await scene.post(f"/s/{name}/v1/chat/completions", body)
            assert reply.json()["choices"][0]["message"]["content"] == name
        assert (await scene.post("/sessions/alice-1/end")).json()["ended"] is True
        assert buffer.counts()["in_flight"] == 0, "nothing is reserved for them"
        assert (await scene.post("/sessions/alice-1/reward", {"reward": 0.5})).status_code == 200
        assert (await scene.post("/sessions/alice-1/reward", {"reward": 0.5})).status_code == 409
        assert scene.worker.facts()["sessions_online_rewarded"] == 1
        await scene.post("/sessions/bob/reward", {"reward": 0})
        group = await lease(buffer)
        await until(lambda: scene.gateway.counts["online_groups_ready"] == 1)
        assert len(scene.gateway.sessions) == 0
    assert group.data_source == "online"
    assert [sampled_text(group, member) for member in range(2)] == ["alice-1", "bob"]
    assert [member.extra_info["session"] for member in group.trajectories] == ["alice-1", "bob"]


@in_event_loop
async def test_online_sessions_of_one_group_are_kept_together(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        opened = []
        for group in ("a", "b", "a"):
            reply = await scene.post("/sessions", {"kind": "online", "group": group, "data_source": "chats"})
            opened.append(reply.json())
        for session in opened:
            await scene.chat(session, [user(f"{SIGN}x")])
            await scene.end(session, reward=1.0)
        put = await lease(buffer)
        assert scene.gateway.online.num_waiting == 1
    assert put.data_source == "chats"
    assert [member.extra_info["session"] for member in put.trajectories] == [opened[0]["id"], opened[2]["id"]]


@in_event_loop
async def test_online_sessions_that_nobody_uses_are_dropped_also_those_without_a_group(
    engine: str, buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "LOOK_EVERY_S", 0.05)
    async with running_gateway(buffer, [engine], version=VERSION, online_timeout_s=0.2) as scene:
        for name in ("rewarded", "ended", "open"):
            await scene.post(f"/s/{name}/v1/chat/completions", {"model": "any", "messages": [user(f"{SIGN}1")]})
        await scene.post("/sessions/rewarded/reward", {"reward": 0.5})
        await scene.post("/sessions/ended/end")
        expiring = asyncio.create_task(scene.gateway.expire())
        await until(lambda: scene.gateway.counts["sessions_expired"] == 3)
        expiring.cancel()
        assert (len(scene.gateway.sessions), scene.gateway.online.num_waiting) == (0, 0)
    assert buffer.counts()["next_ordinal"] == 0


@in_event_loop
async def test_who_has_which_key_may_do_what(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        session = await scene.reserve()
        turn = {"model": "any", "messages": [user(f"{SIGN}1")]}
        key, id = session["api_key"], session["id"]
        cases = [
            (await scene.post("/sessions", key="wrong"), 401),
            (await scene.post("/sessions", key=key), 401),
            (await scene.post(f"/sessions/{id}/end", {"reward": 1}, key=key), 401),  # an agent cannot reward itself
            (await scene.post("/v1/chat/completions", turn, key="wrong"), 401),
            (await scene.post("/v1/chat/completions", turn), 400),  # the gateway's key names no session
            (await scene.post("/s/other/v1/chat/completions", turn, key=key), 401),
            (await scene.post("/s/b%20d/v1/chat/completions", turn), 404),
            (await scene.post("/sessions/nobody/end", {}), 404),
            (await scene.http.get(f"/sessions/{id}"), 401),
            (await scene.http.get("/sessions/nobody"), 401),  # names can be guessed
            (await scene.post("/v1/chat/completions", turn, key=key), 200),
            (await scene.post(f"/s/{key}/v1/chat/completions", turn, key="anything"), 200),
            (await scene.http.post("/v1/chat/completions", json=turn, headers={"x-api-key": key}), 200),
            (await scene.http.get(f"/sessions/{id}", headers={"authorization": f"Bearer {key}"}), 200),
        ]
        for reply, status in cases:
            assert reply.status_code == status, reply.text
            if status != 200:
                assert KEY not in reply.text
                assert key not in reply.text
        assert (await scene.http.get("/health")).json()["status"] == "ok"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"reward": "good"}, "'good'"),
        ({"reward": True}, "True"),
        ({"reward": 1, "reward_error": "no"}, "'no'"),
        ({"reward": 1, "reward_parts": {"form": "x"}}, "form is 'x'"),
        ({"reward": 1, "reward_parts": [1]}, "reward_parts is 'a list'"),
    ],
)
@in_event_loop
async def test_a_reward_that_is_none_is_refused_and_the_session_goes_on(
    engine: str, buffer: ReplayBuffer, body: dict[str, Any], found: str
) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        session = await scene.reserve()
        reply = await scene.end(session, **body)
        assert reply.status_code == 400
        assert found in reply.json()["error"]["message"]
        assert (await scene.chat(session, [user(f"{SIGN}1")]))["content"] == "1"


@in_event_loop
async def test_refusals_say_when_to_come_back(engine: str) -> None:
    closed = ReplayBuffer.in_memory("run", BufferConfig(), StalenessConfig())
    async with running_gateway(closed, [engine], version=VERSION, max_sessions=1, max_body_bytes=1024) as scene:
        late = await scene.post("/sessions", {"wait_s": 0.2})
        assert (late.status_code, "no_trainer" in late.text, late.headers["retry-after"]) == (503, True, "2")
        body = {"model": "any", "messages": [user("x")]}
        assert (await scene.post("/s/one/v1/chat/completions", body)).status_code == 200
        full = await scene.post("/s/two/v1/chat/completions", body)
        assert (full.status_code, full.headers["retry-after"]) == (429, "10")
        assert "gateway.max_sessions" in full.text
        long = {"model": "any", "messages": [user("x" * 2000)]}
        assert (await scene.post("/s/one/v1/chat/completions", long)).status_code == 413
        for text, status in ((b"{", 400), (b"[]", 400), (b'{"messages": "\\ud800"}', 400)):
            reply = await scene.http.post(
                "/s/one/v1/messages", content=text, headers={"authorization": f"Bearer {KEY}"}
            )
            assert (reply.status_code, reply.json()["type"]) == (status, "error"), "in the protocol's own form"


@in_event_loop
async def test_a_client_that_leaves_ends_its_request_at_the_engine(slow_engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [slow_engine], version=VERSION) as scene:
        session = await scene.reserve()

        def at_engine(name: str) -> int:
            return int(httpx.get(f"{slow_engine}/counts").json()[name])

        for fields in ({}, {"stream": True}):
            before = at_engine("aborts")
            asking = asyncio.create_task(scene.chat(session, [user(f"{SIGN}a long answer")], max_tokens=200, **fields))
            await until(lambda: at_engine("running") == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda before=before: at_engine("aborts") == before + 1)
        await until(lambda: scene.gateway.sessions.num_in_flight == 0)
        assert scene.gateway.sessions.by_id(session["id"]).rows == []
        assert scene.gateway.counts["turns_without_answer"] == 2
        scene.stop.set()


@in_event_loop
async def test_a_request_that_comes_again_is_answered_as_before(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        session = await scene.reserve()
        body = {"model": "any", "messages": [user(f"{SIGN}1")]}

        async def ask(**headers: str) -> str:
            reply = await scene.post("/v1/chat/completions", body, key=session["api_key"], **headers)
            return str(reply.json()["id"])

        first = await ask(x_stainless_retry_count="0")
        assert await ask(x_stainless_retry_count="1") == first, "as the official clients try again"
        assert await ask(x_stainless_retry_count="0") != first, "asked anew"
        keyed = await ask(idempotency_key="one")
        assert await ask(idempotency_key="one") == keyed
        assert await ask(idempotency_key="two") != keyed
        state = await scene.http.get(f"/sessions/{session['id']}", headers={"authorization": f"Bearer {KEY}"})
        assert (state.json()["turns"], state.json()["rows_begun"]) == (4, {"retry": 3})


@in_event_loop
async def test_held_out_prompts_of_an_open_evaluation_come_first(engine: str, buffer: ReplayBuffer) -> None:
    evaluation = buffer.open_evaluation(VERSION, num_prompts=1, group_size=1)
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        session = await scene.reserve()
        assert session["stream"] == "eval"
        await scene.chat(session, [user(f"{SIGN}13")])
        await scene.end(session)
        await until(lambda: evaluation.counts()["ready"] == 1)


@in_event_loop
async def test_sessions_in_flight_at_a_stop_are_given_back(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION, stop_timeout_s=0.1) as scene:
        session = await scene.reserve()
        await scene.chat(session, [user(f"{SIGN}1")])
    assert (buffer.counts()["in_flight"], buffer.counts()["waiting"]) == (0, 1)
    assert buffer.audit().ok


@in_event_loop
async def test_what_a_gateway_does_is_reported_as_a_workers_facts(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:
        session = await scene.reserve()
        await scene.chat(session, [user(f"{SIGN}1")])
        await until(lambda: buffer.reports().get("gateway-0", {}).get("turns") == 1)
        facts = buffer.reports()["gateway-0"]
    assert facts["sampled_tokens"] == 2
    assert facts["sessions_open"] == 2, "its group has two"
    assert facts["sessions_offered"] == 1
    assert (facts["episodes_pending"], facts["episodes_interacting"]) == (1, 1)
    assert isinstance(facts["session_bytes"], float | int)


@in_event_loop
async def test_many_sessions_at_once_are_not_mixed_up(engine: str, buffer: ReplayBuffer) -> None:
    async with running_gateway(buffer, [engine], version=VERSION) as scene:

        async def play(name: str) -> None:
            messages: list[dict[str, Any]] = []
            for turn in range(4):
                messages.append(user(f"{SIGN}{name} {turn}"))
                body = {"model": "any", "messages": messages}
                reply = await scene.post(f"/s/{name}/v1/chat/completions", body)
                message = reply.json()["choices"][0]["message"]
                assert message["content"] == f"{name} {turn}"
                messages.append({"role": "assistant", "content": message["content"]})

        await asyncio.gather(*(play(f"session-{index}") for index in range(50)))
        for session in scene.gateway.sessions:
            (row,) = session.trajectory_rows()
            ids = [id for id, sampled in zip(row.token_ids.tolist(), row.mask, strict=True) if sampled and id != 2]
            assert AsciiChat().decode(ids) == "".join(f"{session.name} {turn}" for turn in range(4))
