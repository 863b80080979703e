"""The client against a server that misbehaves on order."""

import asyncio
from pathlib import Path

import pytest

from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from asyncrl.inference.key import KEY_VARIABLE
from asyncrl.inference.protocol import Sampling
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import DROP, VOCAB, FakeServer, running_fake

SAMPLING = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)


def client_of(server: FakeServer, key: str | None = None) -> ServerClient:
    return ServerClient(server.url, vocab_size=VOCAB, api_key=key, control_s=5.0)


@in_event_loop
async def test_a_request_says_every_sampling_parameter_and_its_cache_key() -> None:
    with running_fake(label="1.3") as server:
        answer = await client_of(server).generate([1, 5], SAMPLING, extra_key="1.3", deadline_s=5.0)
        assert answer.finish_reason == "stop"
        (body,) = server.questions()
        assert body["sampling_params"] == {
            "max_new_tokens": 8,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "stop_token_ids": [2],
            "sampling_seed": 7,
        }
        assert body["extra_key"] == "1.3"
        assert body["return_logprob"] is True


@in_event_loop
async def test_no_request_id_begins_with_another_because_abort_matches_prefixes() -> None:
    with running_fake() as server:
        client = client_of(server)
        for _ in range(20):
            await client.generate([1], SAMPLING, extra_key=None, deadline_s=5.0)
        ids = [body["rid"] for body in server.questions()]
        assert len(set(ids)) == 20
        assert len({len(one) for one in ids}) == 1


@pytest.mark.parametrize("ids", [[1, VOCAB], [-1], []])
@in_event_loop
async def test_an_id_outside_the_vocabulary_is_not_sent(ids: list[int]) -> None:
    with running_fake() as server:
        with pytest.raises(RequestRefused, match="kill the server"):
            await client_of(server).generate(ids, SAMPLING, extra_key=None, deadline_s=5.0)
        assert server.requests == []


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (DROP, ServerUnavailable, "dropped"),
        ((500, b"<html>oops</html>"), ServerUnavailable, "/generate: status 500: <html>oops"),
        ((503, {"error": "busy"}), ServerUnavailable, "503"),
        ((429, {"error": "slow down"}), ServerUnavailable, "429"),
        ((400, {"error": {"message": "input is too long"}}), RequestRefused, "input is too long"),
        ((200, b"<html>"), MalformedAnswer, "not JSON"),
        ((200, [{"output_ids": []}]), MalformedAnswer, "expected 1 answers"),
    ],
)
@in_event_loop
async def test_failures_are_told_apart_by_what_to_do_about_them(
    reply: object, error: type[Exception], words: str
) -> None:
    """B211: path, status and the first words are told; nothing parses an error page as a result."""
    with running_fake() as server:
        server.script.append(reply)
        with pytest.raises(error, match=words):
            await client_of(server).generate([1], SAMPLING, extra_key=None, deadline_s=5.0)


@in_event_loop
async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with running_fake() as server:
        client = client_of(server)
    with pytest.raises(ServerUnavailable):
        await client.model_info()


@in_event_loop
async def test_an_answer_that_does_not_come_is_given_up_at_its_deadline() -> None:
    with running_fake(hold=True) as server, pytest.raises(ServerUnavailable, match=r"no answer in 0\.05 s"):
        await client_of(server).generate([1], SAMPLING, extra_key=None, deadline_s=0.05)


@in_event_loop
async def test_connections_are_kept_and_a_server_that_closed_an_idle_one_costs_nothing() -> None:
    with running_fake() as server:
        client = client_of(server)
        for _ in range(3):
            await client.generate([1], SAMPLING, extra_key=None, deadline_s=5.0)
        assert len(server.writers) == 1
        server.drop_all()
        assert (await client.generate([1], SAMPLING, extra_key=None, deadline_s=5.0)).token_ids
        server.close_after = True
        await client.model_info()
        await client.model_info()
        await client.close()


@in_event_loop
async def test_many_requests_are_in_flight_at_once() -> None:
    with running_fake(hold=True) as server:
        client = client_of(server)
        tasks = [
            asyncio.create_task(client.generate([1], SAMPLING, extra_key=None, deadline_s=10.0)) for _ in range(50)
        ]
        while (await client.loads()).num_running < 50:
            await asyncio.wait(tasks, timeout=0.01)
        server.release()
        assert len(await asyncio.gather(*tasks)) == 50


@in_event_loop
async def test_every_call_carries_the_key_and_a_401_names_the_setting_not_the_key() -> None:
    """B210: generation and control alike."""
    with running_fake(key="k1-secret") as server:
        client = client_of(server, "k1-secret")
        await client.model_info()
        await client.pause("in_place")
        await client.resume()
        await client.generate([1], SAMPLING, extra_key=None, deadline_s=5.0)
        with pytest.raises(RequestRefused, match=KEY_VARIABLE) as caught:
            await client_of(server, "wrong-key").generate([1], SAMPLING, extra_key=None, deadline_s=5.0)
        assert "wrong-key" not in str(caught.value)


@in_event_loop
async def test_the_key_comes_from_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k2-secret")
    with running_fake(key="k2-secret") as server:
        await client_of(server).model_info()


@in_event_loop
async def test_an_update_session_that_a_dead_client_left_open_is_closed_and_opened_again() -> None:
    with running_fake(session=True) as server:
        client = client_of(server)
        await client.begin_update()
        await client.load_staged("pkg.load", "Ym9keQ==", num_ranks=2, flush_cache=False)
        await client.end_update()
        (body,) = server.bodies("/update_weights_from_tensor")
        assert body["serialized_named_tensors"] == ["Ym9keQ==", "Ym9keQ=="]
        assert body["load_format"] == "pkg.load"
        assert body["flush_cache"] is False
        assert body["weight_version"] is None
        with pytest.raises(RequestRefused, match="none open"):
            await client.end_update()


@in_event_loop
async def test_a_200_that_says_no_success_is_a_refusal() -> None:
    """B211: the flag counts, not the status."""
    with running_fake() as server:
        server.do_end_weight_update = lambda body: (200, {"success": False, "message": "bad scale"})  # type: ignore[method-assign]  # the one misbehaviour
        with pytest.raises(RequestRefused, match="bad scale"):
            await client_of(server).end_update()


@in_event_loop
async def test_stamping_a_version_aborts_nothing() -> None:
    with running_fake() as server:
        client = client_of(server)
        await client.set_version("1.4")
        assert server.bodies("/update_weight_version") == [{"new_version": "1.4", "abort_all_requests": False}]
        assert (await client.model_info()).weight_version == "1.4"


@in_event_loop
async def test_the_loaders_status_is_read_back_and_missing_before_its_first_run() -> None:
    with running_fake() as server:
        client = client_of(server)
        with pytest.raises(RequestRefused):
            await client.weight_status()
        server.status = [0, 1, 4, 0, 9, 3]
        status = await client.weight_status()
        assert (status.version, status.digest) == (1 << 32 | 4, 9)


@in_event_loop
async def test_plain_text_replies_and_empty_ones_are_accepted() -> None:
    with running_fake() as server:
        client = client_of(server)
        await client.flush_cache(1.0)
        await client.abort_all()
        await client.release_memory()
        assert server.asleep
        await client.resume_memory()
        await client.load_from_disk(Path("/model"), "0.0")
        assert await client.checksum() == '"checksum of 0.0"'
