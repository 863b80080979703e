"""A run whose groups come with a greedy answer: what the token ledger and the metrics of its steps say of it."""

from dataclasses import replace

import pytest

from asyncrl.data.policies import GREEDY_BASELINE
from asyncrl.report.length_bias import measure
from asyncrl.report.lines import Line
from asyncrl.trainer.masked import by_source
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_buffer, make_config, rollout_for, start_trainer

GREEDY_REWARD = 0.25


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def with_greedy(group):
    """Every fourth group lost the reward of its greedy answer."""
    lost = group.ordinal % 4 == 0
    reward = None if lost else GREEDY_REWARD
    greedy = replace(
        group.trajectories[0], policy=GREEDY_BASELINE, reward=reward, reward_error="timeout" if lost else None
    )
    return replace(group, trajectories=(*group.trajectories, greedy))


def test_greedy_answers_are_baselines_and_their_tokens_are_masked(model_dir, tmp_path):
    config = make_config(tmp_path, model_dir, algorithm={"name": "remax"}, staleness={"limit": 0, "order": "ordinal"})
    buffer = make_buffer(config)
    run = start_trainer(config, buffer)
    with rollout_for(run, change=with_greedy).running():
        run.go()
    steps = [(step, values) for step, _, values in run.sink.lines if "buffer/num_answers" in values]
    assert len(steps) == 4
    answered = masked = 0
    for _, values in steps:
        assert values["buffer/num_answers"] == 4 * GROUP_SIZE, "a greedy answer is none"
        assert values["critic/baseline/mean"] == GREEDY_REWARD
        assert values["training/masked_tokens/baseline/toy"] > 0
        assert values["training/masked_tokens/no_baseline/toy"] > 0, "one group a step has no baseline"
        answered += round(values["response_length/mean"] * values["buffer/num_answers"])
        masked += by_source(values)["toy"]
    audit = buffer.audit()
    assert audit.ok, audit.problems
    assert audit.tokens.problems() == []
    trained, kept_out = (audit.tokens.fates[fate, "toy"] for fate in ("trained", "masked"))
    greedy = sum(round(values["training/masked_tokens/baseline/toy"]) for _, values in steps)
    assert kept_out.tokens == masked
    assert trained.tokens + kept_out.tokens == answered + greedy, "every sampled token has one end"
    assert trained.trajectories == 16 * (GROUP_SIZE + 1), "the ledger knows of all that was sampled"
    lines = [Line(step, 1, float(step), values) for step, values in steps]
    bias = measure(lines, None, audit.tokens.to_json()["fates"])["toy"]
    assert (bias.trained.answers, bias.trained.tokens) == (16 * GROUP_SIZE, pytest.approx(answered))
