"""Answers that are under way while versions come: a host, a fleet and a real server, for each value of weightsync.kv.

Every token has the logprob that the version of its span gives it.
"""

import asyncio
import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from asyncrl import waits
from asyncrl.data.rows import PromptRow
from asyncrl.inference.activation import Kv
from asyncrl.inference.fleet import Fleet
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.turns import EpisodeTask, TurnSampler
from buffer import Row
from tests.support.episode_settings import episode_settings
from tests.support.event_loop import in_event_loop
from tests.support.local_models import save_model
from tests.support.rollout_cluster import RolloutCluster, Trainer
from tests.support.sampled_by import assert_sampled_by
from tests.support.sglang_python import skip_without_sglang, warm_python
from tests.support.vllm_python import HEADS, vllm_python

PROMPTS = ([3, 1, 4, 1, 5], [2, 7, 1, 8], [9], [4, 0])
LENGTH = {"local": 900, "sglang": 256, "vllm": 900}
VERSIONS = 2
ERROR = {"local": 1e-2, "sglang": 0.3, "vllm": 0.3}
"""Nats by which a logprob may be off: the others compute in the dtype of their weights, which is bfloat16 here."""
ENGINES = ["local", pytest.param("sglang", marks=pytest.mark.sglang), pytest.param("vllm", marks=pytest.mark.vllm)]


class Answers:
    """Long answers to PROMPTS, as a worker has them sampled."""

    def __init__(self, fleet: Fleet, length: int) -> None:
        self.counts: Counter[str] = Counter()
        turns = TurnSampler(fleet, episode_settings(max_new_tokens=length, context_length=length), (), self.counts)
        self._episodes = [Progress() for _ in PROMPTS]
        row = PromptRow(0, "test", (), None, {})
        self._tasks = []
        for number, (episode, prompt) in enumerate(zip(self._episodes, PROMPTS, strict=True)):
            episode.builder.begin_row(prompt)
            episode.next_turn(None)
            task = EpisodeTask(row, "train", 0, number, may_start_on=lambda version: True, is_greedy=True)
            self._tasks.append(asyncio.create_task(turns.sample(task, episode)))

    async def rows(self) -> list[Row]:
        """Once all are finished."""
        await asyncio.gather(*self._tasks)
        return [episode.builder.rows()[0] for episode in self._episodes]


async def stand_still(cluster: RolloutCluster) -> None:
    """Wait until every answer has a token of the version served, and stop them there until the next one is served."""
    client = cluster.client(cluster.log.acks()["server-0"].url)
    while (await client.loads()).num_running < len(PROMPTS):
        await waits.pause("test", 0.05)  # vLLM tells its loads by a page of metrics, which takes it a while
    await client.pause("in_place")
    await client.close()


def served_weights(trainer: Trainer) -> nn.Module:
    """What servers hold of the trainer's model, in float32."""
    return copy.deepcopy(trainer.model).to(torch.bfloat16).float().eval()


def own_spec(engine: str) -> dict[str, Any]:
    """How the engine's server is started otherwise than the local one."""
    if engine == "local":
        return {"compute_dtype": "float32"}
    return {"python": warm_python() if engine == "sglang" else vllm_python(), "max_running_requests": 8}


@pytest.mark.parametrize("kv", ["keep", "recompute", "abort"])
@pytest.mark.parametrize("engine", ENGINES)
@in_event_loop
async def test_answers_cross_versions_and_each_token_is_of_the_version_that_it_names(
    engine: str, kv: Kv, tmp_path: Path
) -> None:
    skip_without_sglang(engine)
    length = LENGTH[engine]
    own = own_spec(engine)
    heads = HEADS if engine == "vllm" else {}
    cluster = RolloutCluster(tmp_path, model_dir=save_model(tmp_path / "model", "llama", **heads))
    # SGLang ends two tokens before its context does.
    host = cluster.host(kv=kv, engine=engine, context_length=length + 8, **own)
    trainer = cluster.trainer()
    models = {0: served_weights(trainer)}
    async with cluster.running(host) as fleet:
        await cluster.serving(0, deadline_s=300.0)
        await fleet.refresh()
        answers = Answers(fleet, length)
        for _ in range(VERSIONS):
            await stand_still(cluster)
            version = await asyncio.to_thread(trainer.step, 0.03)
            models[version] = served_weights(trainer)
            await cluster.serving(version)
        rows = await answers.rows()
        assert host.facts.counts["activations"] == VERSIONS
    for row in rows:
        assert len(row.token_ids) == length, "greedy answers of this model have no end"
        versions = [span.version for span in row.spans]
        assert versions == sorted(models), "one span each, in order"
        assert [span.digest for span in row.spans] == [cluster.log.digest_of(version) for version in versions]
        assert_sampled_by(models, row, keeps=kv == "keep", error=ERROR[engine])
    assert answers.counts["answers_cut"] == (VERSIONS * len(PROMPTS) if kv == "abort" else 0)
