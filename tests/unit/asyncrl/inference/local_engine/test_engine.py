"""How requests begin, end, are cut, moved aside and stamped."""

import math

import pytest
import torch

from asyncrl.inference.local_engine.engine import Engine
from asyncrl.inference.local_engine.request import QUEUE_ABORT, Request
from tests.support.local_models import EOS, LETTERS, make_engine, make_model, make_request

MODEL = make_model("qwen2")


def engine(**settings: object) -> Engine:
    return make_engine(MODEL, with_text=True, **settings)


def run(*requests: Request, **settings: object) -> list[Request]:
    return engine(**settings).run(list(requests))


def free_running(length: int = 40) -> Request:
    """What request 0 puts out when nothing stops it."""
    return run(make_request(0, [1, 2, 3], length))[0]


# ---- ends ------------------------------------------------------------------------------------------------------------
def test_a_request_ends_at_its_length_and_says_so() -> None:
    request = free_running(7)
    assert len(request.output) == len(request.logprobs) == 7
    assert request.finish == {"type": "length", "length": 7}


def test_a_stop_token_ends_a_request_and_is_part_of_its_output() -> None:
    free = free_running()
    stop = free.output[9]
    first = free.output.index(stop)
    (request,) = run(make_request(0, [1, 2, 3], 40, ignore_eos=False, stop_token_ids=frozenset({stop})))
    assert request.output == free.output[: first + 1]
    assert request.finish == {"type": "stop", "matched": stop}


def test_the_models_end_token_stops_unless_it_is_ignored() -> None:
    outputs = run(*[make_request(seed, [7], 200, ignore_eos=False) for seed in range(8)])
    stopped = [request for request in outputs if request.finish == {"type": "stop", "matched": EOS}]
    assert stopped
    assert all(request.output.index(EOS) == len(request.output) - 1 for request in stopped)
    ignored = run(*[make_request(seed, [7], 200) for seed in range(8)])
    assert all(len(request.output) == 200 for request in ignored)


def test_ignoring_the_end_token_silences_stop_token_ids_too_as_in_sglang() -> None:
    free = free_running()
    (request,) = run(make_request(0, [1, 2, 3], 40, stop_token_ids=frozenset({free.output[5]})))
    assert request.output == free.output


def test_a_stop_token_drawn_as_the_last_allowed_one_ends_with_length_as_in_sglang() -> None:
    free = free_running()
    stop = free.output[4]
    limit = free.output.index(stop) + 1
    (request,) = run(make_request(0, [1, 2, 3], limit, ignore_eos=False, stop_token_ids=frozenset({stop})))
    assert request.finish == {"type": "length", "length": limit}


def test_more_stop_ids_than_fit_a_vector_all_stop() -> None:
    free = free_running()
    stop = free.output[6]
    ids = frozenset(range(100, 120)) | {stop}
    (request,) = run(make_request(0, [1, 2, 3], 40, ignore_eos=False, stop_token_ids=ids))
    assert request.finish == {"type": "stop", "matched": stop}
    assert request.output == free.output[: free.output.index(stop) + 1]


def test_a_stop_string_may_span_tokens() -> None:
    free = free_running()
    letters = "".join(LETTERS[token] if token != EOS else "\0" for token in free.output)
    stop = letters[5:8]
    (request,) = run(make_request(0, [1, 2, 3], 40, stop=(stop, "never")))
    assert request.finish == {"type": "stop", "matched": stop}
    assert request.output == free.output[: letters.index(stop) + 3]


def test_min_new_tokens_forbids_the_end_until_then() -> None:
    requests = run(*[make_request(s, [7], 60, ignore_eos=False, min_new_tokens=30) for s in range(8)])
    assert all(EOS not in request.output[:30] for request in requests)
    assert all(len(request.output) >= 30 for request in requests)
    assert all(math.isfinite(logprob) for request in requests for logprob in request.logprobs)


def test_a_row_of_nan_ends_with_an_error_and_spoils_nobody() -> None:
    sick = make_engine(MODEL)
    healthy_model = {name: tensor.clone() for name, tensor in sick.model.named_parameters()}
    sick.compute.touch(sick.model.load_weights([("model.norm.weight", torch.full((64,), math.nan))]))
    (request,) = sick.run([make_request(0, [1, 2, 3], 100)])
    assert request.finish is not None
    assert (request.finish["type"], request.finish["status_code"], len(request.output)) == ("abort", 500, 1)
    for name, tensor in sick.model.named_parameters():
        tensor.copy_(healthy_model[name])
    sick.compute.touch()
    sick.flush()
    assert sick.run([make_request(0, [1, 2, 3], 40)])[0].output == free_running().output


# ---- scheduling ------------------------------------------------------------------------------------------------------
def test_more_requests_than_rows_wait_their_turn() -> None:
    busy = engine(max_running=3)
    for number in range(9):
        busy.add(make_request(number, [number + 1], 4 + number))
    busy.tick()
    assert (busy.rows.num, len(busy.waiting)) == (3, 6)
    while not busy.idle:
        busy.tick()
    assert busy.num_sampled == sum(4 + number for number in range(9))


def test_free_rows_wait_for_company_but_only_for_a_few_ticks() -> None:
    busy = engine(max_running=32, hold_ticks=5)
    busy.run([make_request(0, [1], 2)])
    for number in range(60):
        busy.add(make_request(number, [number % 50], 3 if number == 0 else 60))
    busy.tick(), busy.tick()
    assert (busy.rows.num, len(busy.waiting)) == (31, 28)
    ticks = 0
    while busy.rows.num == 31:
        busy.tick()
        ticks += 1
    assert ticks == 6


def test_one_tick_prefills_no_more_than_its_budget() -> None:
    busy = engine(prefill_tokens=50)
    for number in range(4):
        busy.add(make_request(number, [3] * 30, 5))
    busy.tick()
    assert (busy.rows.num, len(busy.waiting)) == (1, 3)


# ---- aborting, retracting, versions ----------------------------------------------------------------------------------
def test_aborting_ends_waiting_requests_at_once_and_running_ones_at_the_next_tick() -> None:
    busy = engine(max_running=1)
    first, second = make_request("job-1", [1], 50), make_request("job-12", [2], 50)
    busy.add(first), busy.add(second)
    busy.tick(), busy.tick()
    assert busy.abort(lambda request: request.rid.startswith("job-1")) == [second]
    assert second.finish == {"type": "abort", "message": QUEUE_ABORT}
    assert first.finish is None
    report = busy.tick()
    assert report.finished == [first]
    assert first.finish == {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert len(first.output) == 3
    assert busy.idle


def test_an_aborted_request_keeps_the_tokens_it_would_have_had() -> None:
    busy, free = engine(), free_running()
    request = make_request(0, [1, 2, 3], 40)
    busy.add(request)
    for _ in range(5):
        busy.tick()
    busy.abort(lambda _: True)
    busy.tick()
    assert (request.output, request.logprobs) == (free.output[:6], free.logprobs[:6])


def test_a_retracted_request_goes_on_from_its_tokens() -> None:
    busy, free = engine(), free_running()
    request, other = make_request(0, [1, 2, 3], 40), make_request(5, [9, 9], 12)
    busy.add(request), busy.add(other)
    for _ in range(4):
        busy.tick()
    busy.retract()
    assert (busy.rows.num, [r.rid for r in busy.waiting]) == (0, ["0", "5"])
    assert request.output == free.output[:5]
    while not busy.idle:
        busy.tick()
    assert request.output == free.output
    assert request.logprobs[:5] == free.logprobs[:5]
    assert request.logprobs == pytest.approx(free.logprobs, abs=1e-5)
    assert request.num_retractions == 1


def test_rows_of_several_blocks_are_retracted_after_the_pool_has_grown() -> None:
    """Blocks that a step made are moved outside of one: a weight update in the middle of long answers."""
    requests = [make_request(seed, [1, 2, 3], 300) for seed in range(4)]
    free = engine(max_running=4).run([make_request(seed, [1, 2, 3], 300) for seed in range(4)])
    busy = engine(max_running=4)
    for request in requests:
        busy.add(request)
    for _ in range(150):
        busy.tick()
    assert (busy.rows.num, busy.cache.num_blocks) == (4, 8)
    busy.retract()
    while not busy.idle:
        busy.tick()
    assert [request.output for request in requests] == [request.output for request in free]


def test_tokens_after_a_version_change_carry_it() -> None:
    busy = engine()
    busy.set_version("1.0")
    request, waits = make_request(0, [1], 10), make_request(1, [2], 3)
    busy.add(request)
    for _ in range(3):
        busy.tick()
    busy.set_version("1.1")
    busy.add(waits)
    busy.tick()
    busy.retract()
    busy.set_version("1.2")
    while not busy.idle:
        busy.tick()
    assert [(s.version, s.start, s.end) for s in request.spans(10)] == [("1.0", 0, 4), ("1.1", 4, 5), ("1.2", 5, 10)]
    assert [(s.version, s.start, s.end) for s in waits.spans(3)] == [("1.1", 0, 2), ("1.2", 2, 3)]


def test_the_cache_is_not_flushed_under_live_rows() -> None:
    busy = engine()
    busy.add(make_request(0, [1, 2], 5))
    busy.tick()
    assert not busy.flush()
    assert len(busy.prefixes) == 1
    busy.retract()
    assert busy.flush()
    assert len(busy.prefixes) == 0


def test_a_prompt_kept_under_old_weights_is_reused_unless_flushed_or_keyed_as_in_sglang() -> None:
    busy = engine()
    busy.run([make_request(0, list(range(18)), 2)])
    busy.compute.touch(busy.model.load_weights(make_model("qwen2", seed=9).state_dict().items()))
    stale, keyed = busy.run([make_request(1, list(range(18)), 2), make_request(2, list(range(18)), 2, extra_key="new")])
    assert (stale.cached_tokens, keyed.cached_tokens) == (17, 0)


def test_a_stream_reports_its_first_token_and_then_every_few() -> None:
    busy = engine()
    request = make_request(0, [1], 12, stream_every=5)
    busy.add(request)
    seen = []
    while not busy.idle:
        seen += [list(progress.output) for progress in busy.tick().progress]
    assert [len(output) for output in seen] == [1, 5, 10]
    assert all(output == request.output[: len(output)] for output in seen)
