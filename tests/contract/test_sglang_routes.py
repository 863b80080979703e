"""SGLang's routes and traps, asked of the local server and, where there is one, of the real SGLang.

What passes here passes there: a client tested against the local server must not be surprised by the real one. The
second kind needs the environment that `scripts/setup --sglang` makes, or another one: see sglang_python.
"""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from asyncrl.inference.client import ServerClient
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.streaming import Watch
from tests.support.event_loop import in_event_loop
from tests.support.inference_servers import (
    CONTEXT,
    InferenceServer,
    InFlight,
    inference_server,
    payload,
    wait_for,
)
from tests.support.local_models import EOS, LETTERS, save_model
from tests.support.sglang_python import skip_without_sglang
from tests.support.weight_loader import NAME as LOADER

SERVERS = ["local", pytest.param("sglang", marks=pytest.mark.sglang)]
NORM = "model.norm.weight"
FIRST = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[InferenceServer]:
    skip_without_sglang(request.param)
    with inference_server(request.param, model_dir) as server:
        yield server


@pytest.fixture
def server(started: InferenceServer, model_dir: Path) -> Iterator[InferenceServer]:
    yield started
    started.reset(model_dir)


@pytest.fixture
def weights(model_dir: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in load_file(model_dir / "model.safetensors").items()}


def pairs(answer: dict[str, Any]) -> list[tuple[float, int]]:
    return [(entry[0], entry[1]) for entry in answer["meta_info"]["output_token_logprobs"]]


def spans(answer: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(span["version"], span["start"], span["end"]) for span in answer["meta_info"]["weight_versions"]]


def cut(server: InferenceServer, flight: InFlight) -> dict[str, Any]:
    """Lets a request go on for a moment and aborts it."""
    flight.goes_on()
    server.post("/abort_request", {"abort_all": True})
    return flight.final()


def expected_logprobs(model: nn.Module, ids: list[int], output: list[int], temperature: float) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(output).unsqueeze(1)).squeeze(1).tolist()


# ---- generation (1 to 8) ---------------------------------------------------------------------------------------------
def test_a_greedy_request_repeats(server: InferenceServer) -> None:
    first, second = server.generate(FIRST, 30), server.generate(FIRST, 30)
    assert first["output_ids"] == second["output_ids"]
    assert [token for _, token in pairs(first)] == first["output_ids"]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
def test_output_logprobs_are_those_of_logits_over_temperature(
    server: InferenceServer, reference: nn.Module, temperature: float
) -> None:
    answer = server.generate(FIRST, 30, temperature=temperature)
    expected = expected_logprobs(reference, FIRST, answer["output_ids"], temperature)
    assert [logprob for logprob, _ in pairs(answer)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("narrowed", [{"top_k": 2}, {"top_p": 0.3}])
def test_output_logprobs_are_not_renormalised_for_filters(
    server: InferenceServer, reference: nn.Module, narrowed: dict[str, float]
) -> None:
    """So that the ratio to a trainer that knows no filters is 1 at equal weights (B084)."""
    answer = server.generate(FIRST, 20, temperature=1.0, **narrowed)
    expected = expected_logprobs(reference, FIRST, answer["output_ids"], 1.0)
    assert [logprob for logprob, _ in pairs(answer)] == pytest.approx(expected, abs=1e-4)


def test_input_logprobs_are_at_temperature_1_and_the_first_is_null(
    server: InferenceServer, reference: nn.Module
) -> None:
    ids = list(range(20))
    answer = server.generate(ids, 1, temperature=0.5, body={"logprob_start_len": 15})
    entries = answer["meta_info"]["input_token_logprobs"]
    expected = expected_logprobs(reference, ids[:15], ids[15:], 1.0)
    assert [entry[1] for entry in entries] == ids[15:]
    assert entries[0][0] is None
    assert [entry[0] for entry in entries[1:]] == pytest.approx(expected[1:], abs=1e-4)
    without = server.generate(ids, 1, body={"logprob_start_len": -1})
    assert without["meta_info"]["input_token_logprobs"] == []


def test_a_request_for_no_tokens_scores_the_prompt(server: InferenceServer) -> None:
    answer = server.generate([1, 2, 3], 0, body={"logprob_start_len": 0})
    assert answer["output_ids"] == []
    assert len(answer["meta_info"]["input_token_logprobs"]) == 3


def test_a_scored_prompt_has_the_likeliest_tokens_at_each_position_if_they_are_asked_for(
    server: InferenceServer, reference: nn.Module
) -> None:
    ids = list(range(20))
    answer = server.generate(ids, 0, body={"logprob_start_len": 15, "top_logprobs_num": 3})
    tops = answer["meta_info"]["input_top_logprobs"]
    assert tops[0] is None
    assert [len(top) for top in tops[1:]] == [3] * 4
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0].log_softmax(-1)[15:19].topk(3, dim=-1)
    assert [[entry[1] for entry in top] for top in tops[1:]] == expected.indices.tolist()
    for top, logprobs in zip(tops[1:], expected.values.tolist(), strict=True):
        assert [entry[0] for entry in top] == pytest.approx(logprobs, abs=1e-4)


def test_prompts_of_one_request_may_be_scored_from_different_positions(server: InferenceServer) -> None:
    prompts, starts = [[1, 2, 3, 4], [5, 6, 7]], [2, 1]
    params = {"max_new_tokens": 0, "temperature": 1.0}
    body = {"input_ids": prompts, "sampling_params": [params] * 2, "return_logprob": True, "logprob_start_len": starts}
    answers = server.post("/generate", body).json()
    for prompt, start, answer in zip(prompts, starts, answers, strict=True):
        entries = answer["meta_info"]["input_token_logprobs"]
        alone = server.generate(prompt, 0, body={"logprob_start_len": start})["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == prompt[start:]
        assert entries[0][0] is None
        assert [entry[0] for entry in entries[1:]] == pytest.approx([entry[0] for entry in alone[1:]], abs=1e-5)


def test_a_request_ends_by_length_by_id_or_by_string(server: InferenceServer) -> None:
    free = server.generate(FIRST, 40, temperature=1.0, top_k=1)
    assert free["meta_info"]["finish_reason"] == {"type": "length", "length": 40}
    stop = next(token for token in free["output_ids"][3:] if token != EOS)
    at = free["output_ids"].index(stop)
    by_id = server.generate(FIRST, 60, stop_token_ids=[stop], ignore_eos=False)
    if EOS not in by_id["output_ids"]:
        assert by_id["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
        assert by_id["output_ids"] == free["output_ids"][: at + 1]
    ignored = server.generate(FIRST, 40, stop_token_ids=[stop])
    assert ignored["output_ids"] == free["output_ids"], "ignore_eos silences stop_token_ids too"
    by_string = server.generate(FIRST, 60, stop=LETTERS[stop])
    assert by_string["meta_info"]["finish_reason"] == {"type": "stop", "matched": LETTERS[stop]}
    assert LETTERS[stop] not in by_string["text"]
    assert by_string["output_ids"][-1] == stop


def test_a_stream_is_cumulative_and_its_last_chunk_alone_has_spans(server: InferenceServer) -> None:
    chunks = list(server.stream(FIRST, 200, temperature=0.0))  # long: what is put out between two looks is one chunk
    whole = server.generate(FIRST, 200)
    assert len(chunks) > 2
    for earlier, later in itertools.pairwise(chunks):
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert pairs(later)[: len(pairs(earlier))] == pairs(earlier)
        assert earlier["meta_info"]["finish_reason"] is None
        assert "weight_versions" not in earlier["meta_info"]
    assert chunks[-1]["output_ids"] == whole["output_ids"]
    assert chunks[-1]["text"] == whole["text"]
    assert spans(chunks[-1]) == [("0.0", 0, 200)]


class Endless(Sampling):
    """Sampling that no end token ends."""

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"ignore_eos": True}


@in_event_loop
async def test_an_answer_that_is_watched_comes_in_pieces_and_is_cut_as_any_other(server: InferenceServer) -> None:
    client, shown = ServerClient(server.url, vocab_size=len(LETTERS), control_s=60.0), list[list[int]]()
    greedy = Endless(200, temperature=0.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=1)
    watch = Watch(4, lambda ids: shown.append(list(ids)))
    watched = await client.generate(FIRST, greedy, extra_key=None, deadline_s=60.0, watch=watch)
    whole = await client.generate(FIRST, greedy, extra_key=None, deadline_s=60.0)
    assert (watched.token_ids, watched.finish_reason) == (whole.token_ids, "length")
    assert watched.runs == whole.runs
    assert watched.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert list(itertools.chain(*shown)) == list(watched.token_ids)
    assert len(shown) > 2
    rid, aborting = client.next_rid(), list[asyncio.Task[None]]()

    def cut_at_once(ids: Sequence[int]) -> None:
        if not aborting:
            aborting.append(asyncio.create_task(client.abort(rid)))

    many = replace(greedy, max_new_tokens=server.many)
    answer = await client.generate([1, 2], many, extra_key=None, deadline_s=60.0, rid=rid, watch=Watch(1, cut_at_once))
    assert answer.finish_reason == "abort"
    assert 0 < sum(run.num_tokens for run in answer.runs) == len(answer.token_ids) < server.many
    assert not answer.one_version, "its last piece says the versions, as that of a whole one does"
    await aborting[0]
    await client.close()


def test_batches_and_several_samples_answer_with_lists(server: InferenceServer) -> None:
    params = {"max_new_tokens": 3, "temperature": 1.0, "ignore_eos": True}
    batch = server.post("/generate", {"input_ids": [[1, 2], [3]], "sampling_params": params}).json()
    assert [len(answer["output_ids"]) for answer in batch] == [3, 3]
    assert [answer["meta_info"]["prompt_tokens"] for answer in batch] == [2, 1]
    several = server.post("/generate", {"input_ids": [1, 2], "sampling_params": {**params, "n": 3}}).json()
    assert [len(answer["output_ids"]) for answer in several] == [3, 3, 3]


def test_refusals_have_sglangs_shapes(server: InferenceServer) -> None:
    unknown = server.post("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, "foo": 2}})
    assert unknown.status_code == 400
    assert isinstance(unknown.json()["error"], str)
    for ids, num in (([1] * (CONTEXT + 5), 1), ([1] * (CONTEXT - 10), 100)):
        too_long = server.post("/generate", server.body(ids, num))
        assert too_long.status_code == 400
        assert "context length" in too_long.json()["error"]["message"]
    assert server.post("/generate", {**server.body([1], 1), "foo": 1}).status_code == 200


def test_a_live_request_id_is_refused_and_a_free_one_taken_again(server: InferenceServer) -> None:
    running = server.start(num=server.many, body={"rid": "dup"})
    duplicate = server.post("/generate", server.body([1], 1, body={"rid": "dup"}))
    assert duplicate.status_code == 400
    server.post("/abort_request", {"rid": "dup"})
    running.final()
    assert server.post("/generate", server.body([1], 1, body={"rid": "dup"})).status_code == 200


# ---- aborts and disconnects (9, 10) ----------------------------------------------------------------------------------
def test_an_abort_matches_by_prefix_and_keeps_what_was_put_out(server: InferenceServer) -> None:
    flights = {rid: server.start(num=server.many, body={"rid": rid}) for rid in ("job-1", "job-12", "job-2")}
    assert server.post("/abort_request", {"rid": "job-1"}).status_code == 200
    assert server.post("/abort_request", {"rid": "nobody"}).status_code == 200
    for rid in ("job-1", "job-12"):
        final = flights[rid].final()
        assert final["meta_info"]["finish_reason"]["type"] == "abort"
        assert 0 < len(final["output_ids"]) < server.many
        assert len(pairs(final)) == len(final["output_ids"])
    assert not flights["job-2"].result.done()
    server.post("/abort_request", {"abort_all": True})
    assert flights["job-2"].final()["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_request_sent_during_a_pause_cannot_be_aborted(server: InferenceServer) -> None:
    server.pause("retract")
    sent = server.later(lambda: server.generate([1, 2], 5, body={"rid": "late-1"}))
    assert server.post("/abort_request", {"rid": "late-1"}).status_code == 200
    assert_hangs(sent)
    server.resume()
    assert sent.result(60)["meta_info"]["finish_reason"]["type"] == "length"


def test_a_retracted_request_is_aborted_at_once_with_a_smaller_answer(server: InferenceServer) -> None:
    flight = server.start(num=server.many, body={"rid": "retracted"})
    server.pause("retract")
    server.post("/abort_request", {"rid": "retracted"})
    final = flight.final()
    finish = final["meta_info"]["finish_reason"]
    assert (finish["type"], finish["message"]) == ("abort", "Abort in waiting queue")
    assert "prompt_tokens" not in final["meta_info"]
    assert 0 < len(final["output_ids"]) < server.many


def test_an_in_place_request_is_aborted_only_after_continue(server: InferenceServer) -> None:
    flight = server.start(num=server.many, body={"rid": "in-place"})
    server.pause("in_place")
    server.post("/abort_request", {"rid": "in-place"})
    assert_hangs(flight.result)
    server.resume()
    assert flight.final()["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(server: InferenceServer, stream: bool) -> None:
    body = {**server.body([1, 2], server.many), "stream": stream}
    if stream:
        with server.http.stream("POST", "/generate", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            # On a loaded machine the answer may be complete before we look; then it must be here to the end.
            assert server.running()[0] == 1 or "data: [DONE]" in list(lines)
    else:
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/generate", json=body, timeout=0.5)
    wait_for("the place is free", lambda: server.running() == (0, 0), 10)


# ---- pausing (11) ----------------------------------------------------------------------------------------------------
def assert_hangs(future: "Future[Any]") -> None:
    with pytest.raises(TimeoutError):
        future.result(0.3)


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_paused_request_goes_on_and_its_spans_split_at_the_pause(server: InferenceServer, mode: str) -> None:
    flight = server.start(num=server.many, temperature=1.0)
    server.pause(mode)
    assert server.post("/update_weight_version", {"new_version": "0.1", "abort_all_requests": False}).is_success
    assert server.version() == "0.1"
    late = server.later(lambda: server.generate([9], 2))
    assert_hangs(late)
    server.resume()
    assert spans(late.result(60)) == [("0.1", 0, 2)]
    final = cut(server, flight)
    (_, start, middle), (_, again, end) = spans(final)
    assert (start, again, end) == (0, middle, len(final["output_ids"]))
    assert 0 < middle < end
    assert [version for version, _, _ in spans(final)] == ["0.0", "0.1"]
    assert final["meta_info"]["weight_version"] == "0.1"


def test_pausing_with_abort_answers_everyone_and_holds_new_requests_back(server: InferenceServer) -> None:
    flights = [server.start(num=server.many) for _ in range(3)]
    server.pause("abort")
    for flight in flights:
        final = flight.final()
        assert final["meta_info"]["finish_reason"]["type"] == "abort"
        assert spans(final)[-1][2] == len(final["output_ids"]) > 0
    late = server.later(lambda: server.generate([9], 2))
    assert_hangs(late)
    server.resume()
    assert len(late.result(60)["output_ids"]) == 2


def test_pausing_twice_continuing_without_a_pause_and_unknown_modes(server: InferenceServer) -> None:
    server.resume()
    server.pause("in_place")
    server.pause("retract")
    assert server.version() == "0.0"
    assert server.post("/pause_generation", {"mode": "foo"}).status_code == 400


def test_health_fails_while_paused_and_marks_the_server_until_it_is_asked_again(server: InferenceServer) -> None:
    assert server.get("/health").status_code == 200
    server.pause("in_place")
    assert server.get("/health").status_code == 503
    assert server.get("/ready").status_code == 503
    server.resume()
    assert server.get("/health_generate").status_code == 200
    assert server.get("/ready").status_code == 200


# ---- the prefix cache (12, 18) ---------------------------------------------------------------------------------------
def test_a_flush_is_refused_while_something_runs_or_waits_for_it_with_a_timeout(server: InferenceServer) -> None:
    flight = server.start(num=server.many)
    assert server.post("/flush_cache").status_code == 400
    deferred = server.later(lambda: server.post("/flush_cache?timeout=60").status_code)
    assert_hangs(deferred)
    cut(server, flight)
    assert deferred.result(60) == 200


def test_a_flush_is_refused_while_paused_in_place_and_done_while_retracted(server: InferenceServer) -> None:
    flight = server.start(num=server.many)
    server.pause("in_place")
    assert server.post("/flush_cache").status_code == 400
    server.pause("retract")
    assert server.post("/flush_cache").status_code == 200
    before = len(flight.chunks[-1]["output_ids"])
    server.resume()
    assert len(cut(server, flight)["output_ids"]) > before


def test_a_prompt_cached_under_old_weights_is_reused_unless_an_extra_key_separates_versions(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    ids = list(range(18))
    server.generate(ids, 2)
    server.generate(ids, 2, body={"extra_key": "0.0"})
    server.pause("in_place")
    assert server.update([(NORM, weights[NORM] * 2)], flush_cache=False).status_code == 200
    server.resume()
    cached = [
        server.generate(ids, 2, body=body)["meta_info"]["cached_tokens"]
        for body in ({}, {"extra_key": "0.1"}, {"extra_key": "0.1"})
    ]
    assert cached[0] > 0
    assert cached[1] == 0
    assert cached[2] > 0


# ---- weight updates (13 to 16, 19, 22) -------------------------------------------------------------------------------
def test_updates_need_a_session_and_there_is_one_at_a_time(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    before = server.checksum()
    body = {"serialized_named_tensors": [payload([(NORM, weights[NORM] * 2)])]}
    assert server.post("/update_weights_from_tensor", body).status_code == 400
    assert server.post("/end_weight_update", {}).status_code == 400
    assert server.post("/begin_weight_update", {"selector": "all"}).status_code == 200
    assert server.post("/begin_weight_update", {"selector": "all"}).status_code == 400
    assert server.post("/end_weight_update", {}).status_code == 200
    assert server.post("/begin_weight_update", {"selector": "all"}).status_code == 200
    assert server.post("/end_weight_update", {}).status_code == 200
    assert server.checksum() == before


def test_a_custom_loader_writes_what_the_built_in_one_writes_and_reports_through_the_model(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    before, old = server.checksum(), server.generate(FIRST, 20)["output_ids"]
    changed = [(name, tensor * 1.5 + 0.1) for name, tensor in weights.items()]
    answer = server.update(changed, weight_version="0.1")
    assert answer.json()["success"] is True
    dense, generated = server.checksum(), server.generate(FIRST, 20)["output_ids"]
    assert (dense != before, generated != old) == (True, True)
    assert server.version() == "0.1"
    server.update(list(weights.items()))
    assert server.checksum() == before
    assert server.generate(FIRST, 20)["output_ids"] == old
    assert server.update(changed, load_format=LOADER).json()["success"] is True
    assert server.checksum() == dense
    assert server.generate(FIRST, 20)["output_ids"] == generated
    status = server.post("/get_weights_by_name", {"name": "@anything"})
    assert status.json() == [0, len(changed)]


def test_a_loader_that_refuses_is_still_answered_with_success(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    before = server.checksum()
    answer = server.update([("@refuse", weights[NORM])], load_format=LOADER)
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert server.checksum() == before
    assert server.post("/get_weights_by_name", {"name": "@anything"}).json() == [1, 1]


def test_an_in_place_update_that_asks_for_a_flush_writes_and_answers_400(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    before = server.checksum()
    flight = server.start(num=server.many)
    server.pause("in_place")
    answer = server.update([(NORM, weights[NORM] * 2)], flush_cache=True, weight_version="0.1")
    assert answer.status_code == 400
    assert server.checksum() != before
    assert server.version() == "0.0"
    server.resume()
    assert [version for version, _, _ in spans(cut(server, flight))] == ["0.0", "0.1"]


def test_a_retracted_update_flushes_and_requests_go_on_under_the_new_version(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    flight = server.start(num=server.many)
    server.pause("retract")
    assert server.update([(NORM, weights[NORM] * 2)], weight_version="0.1").status_code == 200
    server.resume()
    final = cut(server, flight)
    assert [version for version, _, _ in spans(final)] == ["0.0", "0.1"]
    assert final["meta_info"]["num_retractions"] == 1


def test_an_update_without_a_pause_waits_until_running_requests_are_done(
    server: InferenceServer, weights: dict[str, torch.Tensor]
) -> None:
    flight = server.start(num=600)
    assert server.update([(NORM, weights[NORM] * 2)], weight_version="0.1").status_code == 200
    # The one span says so; whether the stream's reader has its end yet is up to its thread.
    assert spans(flight.final()) == [("0.0", 0, 600)]


@pytest.mark.parametrize("abort", [None, True, False])
def test_stamping_a_version_aborts_everything_unless_told_not_to(server: InferenceServer, abort: bool | None) -> None:
    flight = server.start(num=server.many)
    body: dict[str, Any] = {"new_version": "0.7"}
    if abort is not None:
        body["abort_all_requests"] = abort
    assert server.post("/update_weight_version", body).status_code == 200
    assert server.version() == "0.7"
    if abort is False:
        assert_hangs(flight.result)
        server.post("/abort_request", {"abort_all": True})
        assert [version for version, _, _ in spans(flight.final())] == ["0.0", "0.7"]
    assert flight.final()["meta_info"]["finish_reason"]["type"] == "abort"


def test_weights_from_disk_need_no_session_and_a_bad_path_changes_nothing(
    server: InferenceServer, tmp_path: Path
) -> None:
    before = server.checksum()
    bad = server.post("/update_weights_from_disk", {"model_path": str(tmp_path / "nowhere")})
    assert (bad.status_code, bad.json()["success"]) == (400, False)
    assert server.checksum() == before
    assert len(server.generate(FIRST, 3)["output_ids"]) == 3
    save_model(tmp_path, "qwen2", seed=3)
    good = server.post("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "2.0"})
    assert good.json()["success"] is True
    assert server.checksum() != before
    assert server.version() == "2.0"


def test_memory_is_released_and_taken_again_when_idle(server: InferenceServer) -> None:
    before = server.generate(FIRST, 10)
    tags = {"tags": ["kv_cache", "weights"]}
    assert server.post("/release_memory_occupation", tags).status_code == 200
    assert server.post("/resume_memory_occupation", tags).status_code == 200
    assert server.generate(FIRST, 10)["output_ids"] == before["output_ids"]


# ---- what a host asks before it adopts a server ----------------------------------------------------------------------


def test_a_server_says_which_weight_loaders_it_takes_and_how_many_ranks_it_has(server: InferenceServer) -> None:
    """A loader that is not listed ends it, so a host asks first."""
    info = server.get("/server_info").json()
    assert info["custom_weight_loader"] == [LOADER]
    assert info.get("tp_size", 1) == 1
    assert not info.get("enable_return_routed_experts", False)


def test_tokens_of_the_prompt_that_were_cached_are_counted_in_the_answer(server: InferenceServer) -> None:
    prompt = list(range(3, 43))
    first, again = (server.generate(prompt, 2, body={"extra_key": "1.7"})["meta_info"] for _ in range(2))
    assert first["cached_tokens"] == 0
    assert 0 < again["cached_tokens"] <= len(prompt)
