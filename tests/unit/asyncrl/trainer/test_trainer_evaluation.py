"""Held-out scores: what they average, what they leave out, and how an evaluation ends without answers."""

import asyncio
import threading

import numpy as np
import pytest

from asyncrl.metrics.held_out import held_out_score
from asyncrl.trainer.evaluation import Evaluation, scores
from buffer import BufferConfig, Group, ReplayBuffer, Row, Span, Trajectory
from buffer.answers import NotAdmitted
from buffer.versions import pack

VERSION = pack(1, 0)


def group(ordinal, *rewards, source="toy", version=VERSION, attempt=1):
    ids, mask = np.array([5, 6, 7], dtype=np.uint32), np.array([False, True, True])
    row = Row(ids, mask, np.zeros(3, dtype=np.float32), (Span(version, 0, 2),), 1)
    members = tuple(
        Trajectory(rows=(row,), reward=reward, reward_error=None if reward is not None else "timeout")
        for reward in rewards
    )
    return Group(ordinal, attempt, source, members)


def test_a_source_is_the_mean_over_prompts_of_the_mean_over_answers():
    values = scores([group(0, 1.0, 0.0), group(1, 1.0, 1.0), group(2, 0.0, 0.0, source="other")], 3, 2, VERSION)
    assert values["val-core/toy/reward/mean@2"] == values["val/test_score/toy"] == 0.75
    assert values["val-core/other/reward/mean@2"] == 0.0
    assert held_out_score(values) == 0.375


def test_answers_without_a_reward_and_prompts_without_answers_are_counted_not_scored():
    values = scores([group(0, 1.0, None), group(1, None, None)], 4, 2, VERSION)
    assert values["val-core/toy/reward/mean@2"] == 1.0
    assert values["val-aux/toy/without_reward"] == 3.0
    assert values["val-aux/missing_prompts"] == 2.0


def test_tokens_of_another_version_are_told():
    values = scores([group(0, 1.0), group(1, 1.0, version=pack(1, 1))], 2, 1, VERSION)
    assert values["val-aux/other_version_frac"] == 0.5


def test_nothing_scored_is_no_score():
    assert held_out_score(scores([group(0, None)], 1, 1, VERSION)) is None


@pytest.fixture
def buffer():
    buffer = ReplayBuffer.in_memory("toy", BufferConfig(max_bytes=64 << 20, max_group_bytes=1 << 20))
    buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
    return buffer


def evaluation(buffer, tmp_path, *, deadline_s=10.0, stop=None, num_prompts=3):
    return Evaluation(
        buffer,
        num_prompts=num_prompts,
        group_size=1,
        pass_reward=1.0,
        deadline_s=deadline_s,
        samples_dir=tmp_path / "samples",
        num_samples=1,
        stopping=(stop or threading.Event()).is_set,
    )


def test_a_prompt_that_dies_is_left_out_and_the_others_are_scored(buffer, tmp_path):
    def play():
        hints = buffer.hints()
        while (ledger := buffer.evaluation()) is None:
            hints.wait(0.05)
        while not isinstance(claim := ledger.reserve("w"), NotAdmitted):
            if claim.ordinal == 1:
                ledger.fail(claim, "reward_failed", "always")
            else:
                ledger.put(claim, group(claim.ordinal, 1.0, attempt=claim.attempt))

    thread = threading.Thread(target=play)
    thread.start()
    values = asyncio.run(evaluation(buffer, tmp_path).run(VERSION, "before"))
    thread.join()
    assert values["val-core/toy/reward/mean@1"] == 1.0
    assert values["val-aux/missing_prompts"] == 1.0
    assert len((tmp_path / "samples" / "before.jsonl").read_text().splitlines()) == 1
    assert buffer.evaluation() is None


def test_answers_that_do_not_come_in_time_cost_the_evaluation_not_the_run(buffer, tmp_path, caplog):
    assert asyncio.run(evaluation(buffer, tmp_path, deadline_s=0.05).run(VERSION, "before")) == {}
    assert "is left out: trainer waits for evaluation" in caplog.text
    assert "is serve-rollout running?" in caplog.text
    assert buffer.evaluation() is None


def test_a_stop_ends_the_wait(buffer, tmp_path):
    stop = threading.Event()
    stop.set()
    assert asyncio.run(evaluation(buffer, tmp_path, stop=stop).run(VERSION, "before")) == {}


def test_without_held_out_prompts_nothing_is_opened(buffer, tmp_path):
    assert asyncio.run(evaluation(buffer, tmp_path, num_prompts=0).run(VERSION, "before")) == {}
