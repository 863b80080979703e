"""The real SGLang tells which experts it sent tokens to, as the model's own router would."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.inference.client import ServerClient
from asyncrl.inference.experts import ExpertCounts
from asyncrl.inference.protocol import Sampling, vocab_size
from tests.support.event_loop import in_event_loop
from tests.support.rollout_cluster import CONTEXT, RolloutCluster
from tests.support.sglang_python import skip_without_sglang, warm_python
from tests.support.sglang_run import save_moe

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]

PROMPT = [3, 1, 4, 1, 5]


@in_event_loop
async def test_the_experts_of_prompt_and_answer_are_those_that_the_router_likes_best(tmp_path: Path) -> None:
    skip_without_sglang()
    cluster = RolloutCluster(tmp_path, model_dir=save_moe(tmp_path / "model"))
    server = cluster.server("s", "sglang", python=warm_python(), record_experts=True, max_running_requests=8)
    client = ServerClient(
        url := server.url(), vocab_size=vocab_size(cluster.model_dir), experts=ExpertCounts.of(cluster.model_dir)
    )
    sampling = Sampling(CONTEXT - len(PROMPT), temperature=0.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=0)
    try:
        await server.begin(url, tmp_path, client)
        answers = [await client.generate(PROMPT, sampling, extra_key=None, deadline_s=60.0) for _ in range(2)]
    finally:
        await server.end()
        await client.close()
    model = AutoModelForCausalLM.from_pretrained(cluster.model_dir, dtype=torch.float32)
    for answer in answers:  # the second one's prompt is in the server's cache
        read = [*PROMPT, *answer.token_ids[:-1]]
        assert answer.experts is not None
        assert answer.experts.shape == (len(read), 2, 2)
        with torch.no_grad():
            logits = model(torch.tensor([read]), output_router_logits=True).router_logits
        expected = torch.stack([layer.topk(2).indices.sort().values for layer in logits], dim=1)
        found = torch.from_numpy(answer.experts).long().sort().values
        # The server computes in bfloat16: where two experts are liked alike it may take the other one.
        assert (found == expected).float().mean() > 0.95
