"""The real SGLang follows a trainer, as hosts and trainers do it in a run, and holds its weights bit for bit.

Each test starts servers, so each follows one story to its end.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.event_loop import in_event_loop
from tests.support.local_models import save_model
from tests.support.sglang_python import skip_without_sglang
from tests.support.sglang_run import SglangRun, checksums, expected_checksums, greedy, save_moe

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]


def with_a_head(model_dir: Path) -> Path:
    """Some checkpoints with tied embeddings list the head all the same; whatever is in it, nobody reads it."""
    weights = load_file(model_dir / "model.safetensors")
    head = torch.zeros_like(weights["model.embed_tokens.weight"])
    save_file({**weights, "lm_head.weight": head}, model_dir / "model.safetensors", {"format": "pt"})
    return model_dir


MODELS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda directory: save_model(directory, "llama", tie_word_embeddings=False),
    "qwen2, tied, its head listed": lambda directory: with_a_head(save_model(directory, "qwen2")),
    "qwen2, tied, one key-value head": lambda directory: save_model(directory, "qwen2", num_key_value_heads=1),
    "qwen3": lambda directory: save_model(directory, "qwen3", tie_word_embeddings=False),
    "qwen3-moe": save_moe,
}
"""Every one has a vocabulary of 51, which SGLang pads."""

VERSIONS = 20


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("llama", 1),
        ("qwen2, tied, its head listed", 1),
        ("qwen3", 1),
        ("qwen3-moe", 1),
        ("qwen2, tied, one key-value head", 2),
        ("qwen3-moe", 2),
    ],
)
@in_event_loop
async def test_after_twenty_versions_the_server_is_one_that_loaded_the_exported_checkpoint(
    name: str, tp: int, tmp_path: Path
) -> None:
    """B046, B048, B052: -0.0, NaN payloads and tied heads arrive."""
    skip_without_sglang()
    model_dir = MODELS[name](tmp_path / "model")
    run = SglangRun(tmp_path, model_dir, tp=tp, bucket_words=5000, anchor_interval=8, keep_deltas=4)
    host = run.cluster.host(engine="sglang", **run.spec)
    async with run.cluster.running(host):
        url = await run.serving(deadline_s=300)
        for number in range(1, VERSIONS + 1):
            run.step(number, 0.6 if number == 7 else 0.02, special=number % 3 == 1)
            await asyncio.to_thread(run.publish)
            if number % 5 in (2, 3):
                continue  # the server is some versions behind, and takes them in one
            await run.serving()
            assert tp > 1 or checksums(url)[0] == expected_checksums(run.weights), f"version {number}"
        assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values()), "or there is nothing to sample"
        held, answers = checksums(url), await greedy(run.cluster.client(url))
        assert (host.facts.counts["lives"], host.facts.trouble) == (1, "")
    fresh = run.server("fresh", run.export(tmp_path / "exported"))
    client = run.cluster.client(fresh_url := fresh.url())
    try:
        await fresh.begin(fresh_url, tmp_path, client)
        assert checksums(fresh_url) == held
        assert await greedy(client) == answers
    finally:
        await fresh.end()
        await client.close()
