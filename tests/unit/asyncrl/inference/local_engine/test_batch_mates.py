"""Tokens and logprobs of a request are equal bit for bit whatever else runs: the property everything replays on."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from asyncrl.inference.local_engine import kernels, self_check
from asyncrl.inference.local_engine.compute import Kind
from asyncrl.inference.local_engine.engine import Engine
from asyncrl.inference.local_engine.request import Request
from tests.support.local_models import make_engine, make_model, make_request, random_work

Outcome = tuple[list[int], list[float]]

WIDER = {"hidden_size": 160, "intermediate_size": 336, "num_attention_heads": 5, "num_key_value_heads": 1}


@dataclass(frozen=True)
class Case:
    model: dict[str, object]
    dtype: torch.dtype = torch.float32
    kind: Kind | None = None
    numba: bool = True


CASES = {
    "plain float32": Case({}, kind="plain"),
    "plain float32, without numba": Case({}, kind="plain", numba=False),
    "transposed float32": Case(WIDER, kind="transposed"),
    "packed float32": Case(WIDER, kind="packed"),
    "plain float32, wide": Case(WIDER, kind="plain"),
    "packed bfloat16": Case(WIDER, torch.bfloat16),
    "blocks of 64": Case({"num_attention_heads": 8, "num_key_value_heads": 8}),
    "blocks of 64, without numba": Case({"num_attention_heads": 8, "num_key_value_heads": 8}, numba=False),
}


def engine_for(case: Case, **settings: object) -> Engine:
    return make_engine(make_model("qwen2", **case.model), case.dtype, kind=case.kind, **settings)


def outcome(request: Request) -> Outcome:
    return request.output, request.logprobs


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_depend_on_order_on_company_or_on_the_number_of_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not CASES[name].numba:
        monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    work = random_work(36, seed=3)

    def run(order: list[int], **settings: object) -> dict[int, Outcome]:
        batch = [make_request(index, *work[index]) for index in order]
        engine_for(CASES[name], **settings).run(batch)
        return {index: outcome(request) for index, request in zip(order, batch, strict=True)}

    together = run(list(range(36)))
    shuffled = random.Random(1).sample(range(36), 36)
    assert run(shuffled) == together
    assert run(shuffled[:20], max_running=3) == {index: together[index] for index in shuffled[:20]}
    for index in (0, 7, 35):
        assert run([index]) == {index: together[index]}


@pytest.mark.parametrize(
    ("overrides", "lengths", "numba"),
    [
        ({}, (150, 200, 250, 400, 33, 700), True),
        ({}, (150, 200, 250, 400, 33, 700), False),
        # More than 16 blocks: from there on torch sums in another order.
        ({"num_attention_heads": 8, "num_key_value_heads": 8}, (1200, 64, 30), False),
        # Heads for which a decode product over 192 positions differs from one over 256.
        ({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128}, (180, 300, 20), False),
        ({"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 64}, (180, 300, 20), False),
    ],
)
def test_prompts_longer_than_an_attention_tile_do_not_see_their_batch_mates(
    overrides: dict[str, object], lengths: tuple[int, ...], numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not numba:
        monkeypatch.setattr(kernels, "HAVE_NUMBA", False)
    # SDPA tiles by the length of the longest prompt from 192 on, and decode products split from 256 positions on.
    model = make_model("qwen3", **overrides)
    prompts = [[(i * 13 + n) % 51 for i in range(n)] for n in lengths]

    def run(*numbers: int) -> list[Outcome]:
        batch = [make_request(number, prompts[number], 40) for number in numbers]
        return [outcome(request) for request in make_engine(model, context_length=1300).run(batch)]

    together = run(*range(len(prompts)))
    assert [run(number)[0] for number in range(len(prompts))] == together


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_shared_prefill_equals_separate_ones_bit_for_bit(cache_bytes: int) -> None:
    prompt = [(5 * i) % 51 for i in range(150)]
    group = [make_request(i, prompt, 30) for i in range(8)]
    engine = make_engine(make_model("qwen3"), prefix_cache_bytes=cache_bytes)
    engine.run([*group, make_request(99, [1, 2, 3], 5)])
    assert sorted(request.cached_tokens for request in group) == [0] + [149] * 7
    for number, request in enumerate(group):
        (alone,) = make_engine(make_model("qwen3")).run([make_request(number, prompt, 30)])
        assert outcome(alone) == outcome(request)


def test_members_of_a_group_that_arrive_later_reuse_the_prompt() -> None:
    prompt = list(range(20))
    engine = make_engine(make_model("llama"))
    first = engine.run([make_request(0, prompt, 6)])[0]
    second, other = engine.run([make_request(0, prompt, 6), make_request(0, prompt, 6, extra_key="new weights")])
    assert (first.cached_tokens, second.cached_tokens, other.cached_tokens) == (0, 19, 0)
    assert outcome(first) == outcome(second) == outcome(other)


def test_a_prompt_cache_smaller_than_the_prompt_keeps_nothing() -> None:
    engine = make_engine(make_model("llama"), prefix_cache_bytes=1000)
    engine.run([make_request(0, list(range(20)), 2)])
    assert len(engine.prefixes) == 0


def test_a_sampling_seed_fixes_the_draw_and_requests_without_one_follow_the_engine_seed() -> None:
    def run(**settings: object) -> list[list[int]]:
        engine = make_engine(make_model("qwen2"), **settings)
        requests = [make_request(name, [4, 5], 12, sampling_seed=seed) for name, seed in (("a", None), ("b", None))]
        return [request.output for request in engine.run([*requests, make_request(7, [4, 5], 12)])]

    first, again, other = run(seed=1), run(seed=1), run(seed=2)
    assert first == again
    assert first[0] != first[1]
    assert first[:2] != other[:2]
    assert first[2] == other[2]


def test_a_cut_answer_continued_under_its_seed_draws_what_it_would_have_drawn_uncut() -> None:
    engine = make_engine(make_model("qwen2"))
    (whole,) = engine.run([make_request("whole", [4, 5, 6], 20, sampling_seed=11)])
    for cut in (1, 7, 19):
        prompt = [4, 5, 6, *whole.output[:cut]]
        (rest,) = engine.run([make_request(f"from {cut}", prompt, 20 - cut, sampling_seed=11)])
        assert rest.output == whole.output[cut:]


def test_the_start_up_check_finds_no_difference_here_and_finds_one_without_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_for(CASES["plain float32, wide"])
    assert self_check.batch_mates_differ(engine.model, engine.compute) is None
    monkeypatch.setattr(engine.compute, "pad_rows", 1)
    difference = self_check.batch_mates_differ(engine.model, engine.compute)
    # MKL takes other kernels for few rows; a CPU on which it does not passes without padding too.
    assert difference is None or "other tokens or logprobs" in difference


def depends_below(limit: int) -> Callable[..., torch.Tensor]:
    """A product as libraries have them: with fewer than `limit` rows other kernels sum in another order."""

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return (rows.unsqueeze(1) * weight).sum(-1) + (1e-7 if len(rows) < limit else 0.0)

    return linear


@pytest.mark.parametrize(("limit", "found"), [(4, 4), (5, 8), (16, 16), (17, 32)])
def test_rows_are_padded_to_what_this_cpu_needs(monkeypatch: pytest.MonkeyPatch, limit: int, found: int) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", depends_below(limit))
    assert engine_for(Case({}, kind="plain")).compute.pad_rows == found


def test_packed_products_step_in_where_no_padding_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", depends_below(150))
    compute = engine_for(Case({}, kind="plain")).compute
    assert (compute.kind, compute.pad_rows) == ("packed", 4)


def test_an_engine_says_so_and_serves_where_nothing_helps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.nn.functional, "linear", depends_below(150))
    monkeypatch.setattr("asyncrl.inference.local_engine.compute.packed_is_right", lambda shapes, dtype: False)
    engine = engine_for(Case({}, kind="plain"))
    assert (engine.compute.kind, engine.compute.pad_rows) == ("plain", 32)
    assert "depend on their batch mates" in caplog.text
    assert len(engine.run([make_request("one", [4, 5, 6], 5, sampling_seed=1)])[0].output) == 5
