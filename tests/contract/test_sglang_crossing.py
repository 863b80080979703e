"""What a request in flight draws once its server's weights changed under it, for each value of weightsync.kv.

Of the local server and of the real SGLang, greedy and in float32, against transformers: before the crossing by the old
weights, after it by the new ones, with the keys and values that the old ones left (keep) or without.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache

from asyncrl.inference.activation import CROSSINGS, Kv
from asyncrl.inference.protocol import VersionRun, parse_answer
from tests.support.inference_servers import InferenceServer, InFlight, inference_server, wait_for
from tests.support.local_models import save_model
from tests.support.sglang_python import skip_without_sglang

SERVERS = ["local", pytest.param("sglang", marks=pytest.mark.sglang)]
PROMPT = [3, 1, 4, 1, 5]
EACH = 24
"""Tokens that are waited for on each side of the crossing, at least."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module", params=SERVERS)
def started(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[InferenceServer]:
    skip_without_sglang(request.param)
    with inference_server(request.param, model_dir) as server:
        yield server


@pytest.fixture
def server(started: InferenceServer, model_dir: Path) -> Iterator[InferenceServer]:
    yield started
    started.reset(model_dir)


@pytest.fixture(params=SERVERS)
def keeping(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[InferenceServer]:
    """Started as the launcher starts it for weightsync.kv = keep."""
    skip_without_sglang(request.param)
    flags = {"local": (), "sglang": ("--disable-overlap-schedule",)}[request.param]
    with inference_server(request.param, model_dir, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def old(model_dir: Path) -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def changed(model_dir: Path) -> dict[str, torch.Tensor]:
    """Every tensor is another one, so that keys and values of the old weights are far from those of the new."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: tensor.float() + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(model_dir / "model.safetensors").items()
    }


@pytest.fixture(scope="module")
def new(model_dir: Path, changed: dict[str, torch.Tensor]) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    model.load_state_dict(changed, strict=False)  # the head is tied
    return model


def come_to(flight: InFlight, count: int) -> None:
    wait_for(f"{count} tokens", lambda: bool(flight.chunks) and len(flight.chunks[-1]["output_ids"]) >= count)


def cross(server: InferenceServer, kv: Kv, changed: dict[str, torch.Tensor], flight: InFlight) -> None:
    """As an activation does it."""
    crossing = CROSSINGS[kv]
    if crossing.aborts:
        server.post("/abort_request", {"rid": "", "abort_all": True})
    server.pause(crossing.mode)
    if crossing.aborts:
        assert flight.final()["meta_info"]["finish_reason"]["type"] == "abort", "answered while it is paused"
    updated = server.update(list(changed.items()), flush_cache=crossing.flush_cache, weight_version="0.1")
    assert updated.json()["success"] is True
    server.resume()


def crossed(server: InferenceServer, kv: Kv, changed: dict[str, torch.Tensor]) -> tuple[list[int], list[float], int]:
    """Tokens and logprobs of one answer of both versions, and where the second begins."""
    flight = server.start(PROMPT, server.many)
    come_to(flight, EACH)
    cross(server, kv, changed, flight)
    come_to(flight, len(flight.chunks[-1]["output_ids"]) + 2 * EACH)
    server.post("/abort_request", {"abort_all": True})
    tokens, logprobs, (before, after) = parsed(flight.final())
    assert (before.label, after.label) == ("0.0", "0.1")
    assert min(before.num_tokens, after.num_tokens) >= EACH
    return tokens, logprobs, before.num_tokens


def parsed(answer: dict[str, Any]) -> tuple[list[int], list[float], tuple[VersionRun, ...]]:
    checked = parse_answer(answer)
    return list(checked.token_ids), list(checked.logprobs), checked.runs


@torch.no_grad()
def logits_of(model: nn.Module, ids: Sequence[int], past: DynamicCache | None = None) -> torch.Tensor:
    return model(torch.tensor([ids]), past_key_values=past, use_cache=past is not None).logits[0]


def assert_greedy(logits: torch.Tensor, tokens: list[int], logprobs: list[float]) -> None:
    """`tokens` are the likeliest ones, up to rounding, and have these logprobs."""
    expected = logits.log_softmax(-1)
    drawn = expected.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(logprobs), drawn, atol=2e-4, rtol=0)
    torch.testing.assert_close(drawn, expected.max(-1).values, atol=2e-4, rtol=0)


def test_with_keep_a_request_goes_on_with_the_keys_and_values_of_the_old_weights(
    keeping: InferenceServer, old: nn.Module, new: nn.Module, changed: dict[str, torch.Tensor]
) -> None:
    tokens, logprobs, at = crossed(keeping, "keep", changed)
    assert_greedy(logits_of(old, PROMPT + tokens[: at - 1])[len(PROMPT) - 1 :], tokens[:at], logprobs[:at])
    past = DynamicCache()
    logits_of(old, PROMPT + tokens[: at - 1], past)
    kept = logits_of(new, tokens[at - 1 : -1], past)
    assert_greedy(kept, tokens[at:], logprobs[at:])
    recomputed = logits_of(new, PROMPT + tokens[:-1])[len(PROMPT) + at - 1 :]
    assert (kept.log_softmax(-1) - recomputed.log_softmax(-1)).abs().max() > 0.1, "it matters which"


def test_with_recompute_a_request_goes_on_as_at_a_new_server_that_is_given_its_tokens(
    server: InferenceServer, old: nn.Module, new: nn.Module, changed: dict[str, torch.Tensor]
) -> None:
    tokens, logprobs, at = crossed(server, "recompute", changed)
    assert_greedy(logits_of(old, PROMPT + tokens[: at - 1])[len(PROMPT) - 1 :], tokens[:at], logprobs[:at])
    assert_greedy(logits_of(new, PROMPT + tokens[:-1])[len(PROMPT) + at - 1 :], tokens[at:], logprobs[at:])
    fresh, _, runs = parsed(server.generate(PROMPT + tokens[:at], EACH, body={"extra_key": "fresh"}))
    assert fresh == tokens[at : at + EACH]
    assert runs == (VersionRun("0.1", EACH),)


def test_with_abort_a_request_comes_back_and_goes_on_elsewhere_or_here_under_the_new_weights(
    server: InferenceServer, old: nn.Module, new: nn.Module, changed: dict[str, torch.Tensor]
) -> None:
    flight = server.start(PROMPT, server.many)
    come_to(flight, EACH)
    cross(server, "abort", changed, flight)
    tokens, logprobs, runs = parsed(flight.final())
    assert len(tokens) >= EACH
    assert {run.label for run in runs} <= {"0.0", ""}, "an answer from the queue may name no version"
    assert_greedy(logits_of(old, PROMPT + tokens[:-1])[len(PROMPT) - 1 :], tokens, logprobs)
    rest, rest_logprobs, runs = parsed(server.generate(PROMPT + tokens, EACH, body={"extra_key": "0.1"}))
    assert runs == (VersionRun("0.1", EACH),)
    assert_greedy(logits_of(new, PROMPT + tokens + rest[:-1])[len(PROMPT + tokens) - 1 :], rest, rest_logprobs)
