"""Teachers that are real servers: their scores are the model's own, and one that dies or refuses gives no number."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from asyncrl.config import TeacherConfig
from asyncrl.inference.scoring import ScoringClient
from asyncrl.rollout import teacher as module
from asyncrl.rollout.teacher import Teacher
from asyncrl.rollout.teachers import Teachers
from buffer import Row, Span, Trajectory
from tests.support.event_loop import in_event_loop
from tests.support.inference_servers import InferenceServer, start_local
from tests.support.local_models import VOCAB, save_model

CONTEXT = 64


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("teacher"), "llama")


@pytest.fixture
def server(model_dir: Path) -> Iterator[InferenceServer]:
    started = start_local(model_dir, "--context-length", str(CONTEXT))
    yield started
    started.stop()


def trajectory(ids: Sequence[int], sampled: Sequence[int]) -> Trajectory:
    mask = np.isin(np.arange(len(ids)), sampled)
    logprobs = np.where(mask, -0.5, 0).astype(np.float32)
    spans = (Span(0, 1, len(sampled)),)
    return Trajectory(rows=(Row(np.array(ids, dtype=np.uint32), mask, logprobs, spans, sampled[0]),), reward=1.0)


def teachers_of(url: str, counts: Counter[str], **settings: object) -> Teachers:
    config = TeacherConfig(name="big", urls=(url,), **settings)  # type: ignore[arg-type]  # by name
    return Teachers([Teacher(config, [ScoringClient(url, vocab_size=VOCAB)], VOCAB, counts)])


@in_event_loop
async def test_scores_are_the_models_own_logprobs_and_its_likeliest_tokens(
    server: InferenceServer, model_dir: Path
) -> None:
    counts: Counter[str] = Counter()
    teachers = teachers_of(server.url, counts, top_k=3)
    await teachers.ready(20.0)
    ids = [(7 * place + 3) % VOCAB for place in range(CONTEXT - 1)]
    sampled = [4, 5, 6, 20, 21, CONTEXT - 2]
    try:
        scored = await teachers.score("toy", trajectory(ids, sampled))
    finally:
        await teachers.close()
    with torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        logprobs_TV = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    places = np.array(sampled)
    columns = scored.rows[0].columns
    expected = logprobs_TV[places - 1, np.array(ids)[places]].numpy()
    np.testing.assert_allclose(columns["teacher/big/logprobs"][places], expected, atol=1e-4)
    best = logprobs_TV[places - 1].topk(3, dim=-1)
    np.testing.assert_array_equal(columns["teacher/big/topk_ids"][places], best.indices.numpy())
    np.testing.assert_allclose(columns["teacher/big/topk_logprobs"][places], best.values.numpy(), atol=1e-4)
    assert counts == {"teacher_big_scored": 1}


@in_event_loop
async def test_an_answer_longer_than_the_teachers_context_is_masked_and_its_batch_mates_are_scored(
    server: InferenceServer,
) -> None:
    counts: Counter[str] = Counter()
    teachers = teachers_of(server.url, counts, in_flight=1)
    short, long = trajectory([1, 2, 3], [1, 2]), trajectory([1] * CONTEXT, [CONTEXT - 1])
    try:
        first = await teachers.score("toy", short)
        refused = await teachers.score("toy", long)
    finally:
        await teachers.close()
    assert first.reward == 1.0
    assert refused.reward is None
    assert refused.reward_error is not None
    assert refused.reward_error.startswith("teacher big: refused: ")
    assert "context length" in refused.reward_error


@in_event_loop
async def test_a_teacher_that_was_killed_leaves_no_number(
    server: InferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)
    teachers = teachers_of(server.url, Counter(), max_attempts=2)
    try:
        assert (await teachers.score("toy", trajectory([1, 2, 3], [1, 2]))).reward == 1.0
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(10)
        lost = await teachers.score("toy", trajectory([1, 2, 3], [1, 2]))
    finally:
        await teachers.close()
    assert lost.reward is None
    assert lost.reward_error is not None
    assert lost.reward_error.startswith("teacher big: failed: 2 attempts")
    assert dict(lost.rows[0].columns) == {}
