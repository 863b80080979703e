"""vLLM behind the same seam: what is sent, how answers are read, and that an activation makes of it what it should."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from asyncrl.inference.activation import Held, Kv, Pausing, activate
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.protocol import Answer, Sampling, VersionRun
from asyncrl.inference.vllm_client import GENERATE, VllmClient, as_sglang
from tests.support.event_loop import in_event_loop
from tests.support.fake_receiver import FakeLog, FakeTicket
from tests.support.fake_sglang import DROP, STOP_ID, VOCAB, running_fake, token
from tests.support.fake_vllm import FakeVllm

SAMPLING = Sampling(8, 0.7, 1.0, -1, (STOP_ID,), 7)
V1, V2 = 1 << 32 | 1, 1 << 32 | 2
TICKET = FakeTicket("delta", V1, V2, V2 + 1000)


@pytest.fixture
def server() -> Iterator[FakeVllm]:
    """Holds 1.1; a delta to 1.2 is staged."""
    with running_fake(FakeVllm) as started:
        FakeLog(ticket=TICKET).loads_into(started, V1)
        started.label = "1.1"
        yield started


def client_of(server: FakeVllm, api_key: str | None = None) -> VllmClient:
    return VllmClient(server.url, vocab_size=VOCAB, control_s=5.0, api_key=api_key)


async def ask(client: VllmClient, *ids: int, rid: str | None = None) -> Answer:
    return await client.generate(list(ids) or [1, 5], SAMPLING, extra_key="1.1", deadline_s=10.0, rid=rid)


async def started(server: FakeVllm, num: int = 1) -> None:
    while len(server.running) < num:
        await asyncio.to_thread(lambda: None)


@pytest.mark.parametrize("ids_by_name", [False, True])
@in_event_loop
async def test_tokens_logprobs_and_versions_come_back_and_every_parameter_is_sent(
    server: FakeVllm, ids_by_name: bool
) -> None:
    server.ids_by_name = ids_by_name
    client = client_of(server)
    answer = await ask(client)
    assert answer.token_ids == (*(token(7, at) for at in range(2, 6)), STOP_ID)
    assert answer.logprobs == pytest.approx([-0.5, -0.51, -0.52, -0.53, -0.54])
    assert answer.finish_reason == "stop"
    assert answer.runs == (VersionRun("1.1", 5),)
    (body,) = server.bodies(GENERATE)
    assert (body["token_ids"], body["cache_salt"], body["stream"]) == ([1, 5], "1.1", False)
    assert body["sampling_params"] == {
        **{"max_tokens": 8, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 7},
        **{"stop_token_ids": [STOP_ID], "logprobs": 1, "detokenize": False},
    }
    await client.close()


@in_event_loop
async def test_short_questions_are_asked_one_by_one_and_one_that_is_refused_hurts_no_other(server: FakeVllm) -> None:
    server.script.append((400, {"error": "too long"}))
    client = client_of(server)
    first, *others = await asyncio.gather(*(ask(client, 1, at) for at in (5, 6, 7)), return_exceptions=True)
    assert isinstance(first, RequestRefused)
    assert all(isinstance(other, Answer) for other in others)
    assert [body["token_ids"] for body in server.bodies(GENERATE)] == [[1, 5], [1, 6], [1, 7]]
    await client.close()


@in_event_loop
async def test_a_server_that_names_no_versions_leaves_them_to_what_it_confirmed() -> None:
    with running_fake(FakeVllm, spans=False) as server:
        client = client_of(server)
        answer = await ask(client)
        assert answer.one_version
        assert answer.runs == (VersionRun("", 5),)
        await client.close()


@in_event_loop
async def test_one_request_is_aborted_by_the_id_that_the_server_gave_it(server: FakeVllm) -> None:
    server.hold = True
    client = client_of(server)
    rid = client.next_rid()
    asking = [asyncio.create_task(ask(client, 1, 5, rid=rid)), asyncio.create_task(ask(client, 1, 6))]
    await started(server, 2)
    await client.abort(rid)
    cut = await asking[0]
    assert (cut.finish_reason, len(cut.token_ids)) == ("abort", 2)
    assert (await client.loads()).num_running == 1
    server.release()
    assert (await asking[1]).finish_reason == "stop"
    await client.close()


@pytest.mark.parametrize(
    ("kv", "paths"),
    [
        ("keep", ["/pause", "/collective_rpc", "/collective_rpc", "/update_weight_version", "/resume"]),
        (
            "recompute",
            [
                "/pause",
                "/collective_rpc",
                "/reset_prefix_cache",
                "/collective_rpc",
                "/update_weight_version",
                "/resume",
            ],
        ),
        (
            "abort",
            [
                *("/abort_requests", "/pause", "/collective_rpc", "/reset_prefix_cache"),
                *("/collective_rpc", "/update_weight_version", "/resume"),
            ],
        ),
    ],
)
@in_event_loop
async def test_an_activation_loads_what_is_staged_stamps_it_and_says_what_becomes_of_requests(
    server: FakeVllm, kv: Kv, paths: list[str]
) -> None:
    client, pausing = client_of(server), Pausing(kv=kv, num_ranks=1, deadline_s=10.0)
    server.hold = True
    asking = asyncio.create_task(ask(client))
    await started(server)
    server.paths.clear()
    done = await activate(client, TICKET, held=Held(V1, V1 + 1000), pausing=pausing)
    assert done.num_changed == 7
    assert server.paths == paths
    assert [body["method"] for body in server.bodies("/collective_rpc")[-2:]] == ["load_staged", "weight_status"]
    assert (await client.model_info()).weight_version == "1.2"
    server.release()
    answer = await asking
    assert answer.finish_reason == ("abort" if kv == "abort" else "stop")
    await client.close()


@in_event_loop
async def test_the_worst_rank_decides_and_a_missing_one_is_noticed(server: FakeVllm) -> None:
    client = client_of(server)
    server.do_collective_rpc = lambda body: (200, {"results": [[0, 1, 2, 0, 9, 7], [9, 1, 1, 0, 8, 0]]})  # type: ignore[method-assign]  # two ranks, one of which failed
    assert (await client.weight_status()).code == 9
    with pytest.raises(MalformedAnswer, match="answers of 4 ranks"):
        await client.load_staged("", "", num_ranks=4, flush_cache=False)
    await client.close()


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (DROP, ServerUnavailable),
        ((500, b"oops"), ServerUnavailable),
        ((400, {"error": {"message": "too long"}}), RequestRefused),
        ((200, {"choices": []}), MalformedAnswer),
        ((200, {"choices": [{"token_ids": [5], "finish_reason": "stop", "logprobs": None}]}), MalformedAnswer),
    ],
)
@in_event_loop
async def test_failures_are_told_apart_as_for_sglang(server: FakeVllm, reply: Any, error: type[Exception]) -> None:
    server.script.append(reply)
    client = client_of(server)
    with pytest.raises(error):
        await ask(client)
    await client.close()


def choice(**changes: Any) -> dict[str, Any]:
    content = [{"token_id": 5, "logprob": -0.1, "rank": 1}]
    return {"choices": [{"token_ids": [5], "finish_reason": "stop", "logprobs": {"content": content}, **changes}]}


def test_minus_infinity_in_disguise_is_no_logprob() -> None:
    body = choice(logprobs={"content": [{"token_id": 5, "logprob": -9999.0, "rank": 1}]})
    assert as_sglang(body, "")["meta_info"]["output_token_logprobs"] == [[None, 5, None]]  # type: ignore[index]  # a decoded object


def test_a_token_that_is_written_as_text_is_no_id() -> None:
    with pytest.raises(MalformedAnswer, match="--return-tokens-as-token-ids"):
        as_sglang(choice(logprobs={"content": [{"token": " the", "logprob": -0.1}]}), "")


@in_event_loop
async def test_it_carries_the_key() -> None:
    with running_fake(FakeVllm, key="k1-secret") as server:
        client = client_of(server, "k1-secret")
        assert (await ask(client)).token_ids
        assert (await client.loads()).num_waiting == 0
        await client.pause("in_place")
        await client.resume()
        await client.close()
