"""A step that reads shared prompts once is the step that reads every row: logprobs, values, gradients, metrics."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asyncrl.algorithms import ALGORITHMS
from asyncrl.trainer.attention import within_documents
from asyncrl.trainer.documents import Documents, Repeats
from asyncrl.trainer.flops import FLOPS, RECOMPUTED, ModelFlops
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.micro_batch import micro_batches
from asyncrl.trainer.packing import GRID_TO_BUDGET, KEYS_TO_BUDGET, packed, packed_by_prompt
from asyncrl.trainer.passes import Passes
from asyncrl.trainer.prompts import Prompts
from asyncrl.trainer.repeated import repeated
from asyncrl.trainer.routing import COLUMN
from asyncrl.trainer.tally import Tally
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack
from tests.support.tiny_critic import make_critic
from tests.support.tiny_policy import VOCABULARY, gradient_of, make_batch, make_policy

CPU = torch.device("cpu")
GROUPS = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4)), min_size=1, max_size=4
)
"""(prompt, answers) of each group, in tokens."""
SHARED = [(6, [5, 1, 3, 5]), (4, [2, 5]), (7, [3])]
"""Prompts of several lengths and numbers of rows, an answer of which nothing is read, and a prompt of one row."""


@pytest.fixture(scope="module")
def policy(model_dir):
    """In double precision up to the logprobs."""
    made = make_policy(model_dir, packing=True, algorithm_kl_coef=0.1, algorithm_entropy_coef=0.01)
    for model in (made.model, made._reference):
        model.module.double()
    made.algorithm = replace(ALGORITHMS["grpo"], kl_coef=0.1, entropy_coef=0.01)
    return made


def make_groups(lengths, seed=0, columns=None):
    """Random tokens; the answers of a group have one prompt, and a long one an observation in its middle."""
    rng, groups = np.random.default_rng(seed), []
    for ordinal, (prompt, answers) in enumerate(lengths):
        asked, members = rng.integers(2, VOCABULARY, prompt), []
        for number, answer in enumerate(answers):
            mask = np.arange(prompt + answer) >= prompt
            mask[prompt + 1 : prompt + 1 + (answer > 4)] = False
            row = Row(
                token_ids=np.concatenate([asked, rng.integers(2, VOCABULARY, answer)]).astype(np.uint32),
                mask=mask,
                logprobs=np.where(mask, -rng.random(len(mask)) * 4, 0).astype(np.float32),
                spans=(Span(pack(1, 0), 0, int(mask.sum())),),
                num_prompt_tokens=prompt,
                columns={} if columns is None else columns(prompt + answer),
            )
            members.append(Trajectory(rows=(row,), reward=float(number % 2)))
        groups.append(Group(ordinal=ordinal, attempt=1, data_source="toy", trajectories=tuple(members)))
    return groups


def gradient(policy, groups, max_tokens, *, shares):
    """Of one step with micro-batches of so many tokens."""
    return gradient_of(policy, groups, Passes(policy.ranks, max_tokens, CPU, is_packed=True, shares_prompts=shares))


def micros_of(policy, groups, max_tokens=1000, *, shares=True):
    batch = make_batch(policy, groups)
    rows = batch.rows_by_mini_batch[0]
    return list(micro_batches(batch, rows, max_tokens, CPU, is_packed=True, shares_prompts=shares))


@settings(max_examples=25, deadline=None)
@given(lengths=GROUPS, budget=st.integers(1, 80), seed=st.integers(0, 99))
def test_shared_prompts_have_the_gradient_of_rows_that_are_read_whole(policy, lengths, budget, seed):
    groups = make_groups(lengths, seed)
    expected, metrics = gradient(policy, groups, budget, shares=False)
    found, same = gradient(policy, groups, budget, shares=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    for of_step in (metrics, same):
        del of_step[FLOPS]
    assert same == pytest.approx(metrics, rel=1e-5, abs=1e-7)


def test_a_prompt_is_read_once_and_its_tokens_stand_where_they_stood(policy):
    """The first group's prompt is 6 tokens of 4 rows, the second one's 4 of 2; the third has one row."""
    groups = make_groups(SHARED)
    (micro,) = micros_of(policy, groups)
    (whole,) = micros_of(policy, groups, shares=False)
    # The last token of a row is predicted, never read.
    assert whole.inputs.token_ids_RT.shape[1] == sum(p + sum(a) + p * (len(a) - 1) - len(a) for p, a in SHARED)
    assert micro.inputs.token_ids_RT.shape[1] == sum(p + sum(a) - len(a) for p, a in SHARED)
    assert sorted(micro.inputs.saved) == [4, 6, 6, 6]
    ids, positions = micro.inputs.token_ids_RT[0], micro.inputs.positions_RT[0]
    batch = make_batch(policy, groups)
    before_N = batch.positions_N[micro.index_N] - 1
    row_N = np.searchsorted(batch.starts_R, micro.index_N, side="right") - 1
    read_N = [batch.rows[row].token_ids[before] for row, before in zip(row_N, before_N, strict=True)]
    assert ids[micro.predictors_M].tolist() == [int(token) for token in read_N]
    assert positions[micro.predictors_M].tolist() == before_N.tolist()


def test_rows_with_recorded_experts_share_nothing(policy):
    groups = make_groups(SHARED, columns=lambda length: {COLUMN: np.zeros((length, 2, 1), dtype=np.int16)})
    assert all(micro.inputs.layout is None for micro in micros_of(policy, groups))


def test_a_prompt_that_saves_next_to_nothing_is_read_with_every_row(policy):
    short, long = make_groups([(2, [30, 30])]), make_groups([(5, [30, 30])])
    assert all(micro.inputs.layout is None for micro in micros_of(policy, short))
    assert all(micro.inputs.layout is not None for micro in micros_of(policy, long))


def test_values_and_their_gradients_are_those_of_rows_that_are_read_whole(model_dir):
    batch = make_batch(make_policy(model_dir), make_groups(SHARED))
    returns_N = torch.linspace(-1, 1, batch.num_trained)
    found = {}
    for shares in (True, False):
        critic = make_critic(model_dir, packing=True, share_prompts=shares, micro_batch_tokens=25)
        with torch.no_grad():
            critic.model.head.weight.fill_(0.1)
        critic.update(batch, returns_N, critic.values(batch), Tally())
        found[shares] = critic.values(batch)
    torch.testing.assert_close(found[True], found[False], rtol=1e-4, atol=1e-5)


def test_operations_that_were_saved_are_not_counted(model_dir):
    groups, found = make_groups(SHARED), {}
    for shares in (True, False):
        policy = make_policy(model_dir, packing=True, share_prompts=shares, gradient_checkpointing=True, ppo_epochs=2)
        found[shares] = Learner(policy).step(make_batch(policy, groups)).values()
    flops = ModelFlops.of(policy.model.module)
    assert found[False][FLOPS] - found[True][FLOPS] == 2 * flops.training([6, 6, 6, 4], 0)
    assert found[False][RECOMPUTED] - found[True][RECOMPUTED] == 2 * flops.layers([6, 6, 6, 4])


@pytest.mark.parametrize("window", [None, 3])
def test_attention_behind_a_prompt_is_that_of_the_whole_document(window):
    """Two documents of 3 + 4 and 3 + 2 tokens, and one of 5 by itself."""
    index = np.array([0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10, 11, 12, 13])
    shared = Documents.behind_prompts([(3, 3), (4, 7), (2, 5), (5, 5)], Repeats.of(index, 3, CPU), CPU)
    whole_T = np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 7, 8, 9, 10, 11, 12, 13])
    own_T = torch.tensor([0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15, 16])
    source = torch.Generator().manual_seed(0)
    states = [torch.randn(1, heads, 14, 8, generator=source, requires_grad=True) for heads in (4, 2, 2)]
    out, _ = within_documents(nn.Module(), *states, None, documents=shared, sliding_window=window)
    wide = [each[:, :, whole_T] for each in states]
    expected, _ = within_documents(
        nn.Module(), *wide, None, documents=Documents.of([7, 5, 5], CPU), sliding_window=window
    )
    torch.testing.assert_close(out, expected[:, own_T])
    upstream = torch.randn(out.shape, generator=source)
    for one, other in zip(
        torch.autograd.grad(out, states, upstream),
        torch.autograd.grad(expected[:, own_T], states, upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_the_gradient_of_a_repeated_token_is_the_sum_over_its_copies():
    """Tokens 0 to 2 are of a prompt of two rows, 3 and 4 of one of three, 5 of no other."""
    index = np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 3, 4, 0, 1, 2, 3, 4])
    repeats = Repeats.of(index, 5, CPU)
    states = torch.randn(1, 2, 6, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(repeated(states, repeats), states[:, :, index])
    assert torch.autograd.gradcheck(lambda tokens: repeated(tokens, repeats), (states,))


@settings(max_examples=80, deadline=None)
@given(GROUPS, st.integers(1, 64))
def test_micro_batches_count_a_prompt_once_and_stay_within_the_budget(lengths, budget):
    prompts = [(number, prompt) for number, (prompt, answers) in enumerate(lengths) for _ in answers]
    of_R, shared_R = (np.array(column, dtype=np.int64) for column in zip(*prompts, strict=True))
    lengths_R = shared_R + np.array([answer for _, answers in lengths for answer in answers], dtype=np.int64)
    parts = packed_by_prompt(lengths_R, of_R, shared_R, budget)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths_R)))
    for part in parts:
        once = {int(number): int(length) for number, length in zip(of_R[part], shared_R[part], strict=True)}
        tokens = int((lengths_R - shared_R)[part].sum()) + sum(once.values())
        grid = len(part) * int(lengths_R[part].max())
        assert len(part) == 1 or (tokens <= budget and grid <= GRID_TO_BUDGET * budget)
        assert len(part) == 1 or lengths_R[part].sum() <= KEYS_TO_BUDGET * budget
        assert lengths_R[part].tolist() == sorted(lengths_R[part].tolist(), reverse=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(8, 64))
def test_where_no_prompt_is_shared_rows_are_laid_together_as_ever(lengths, budget):
    lengths_R = np.array(lengths, dtype=np.int64)
    alone = Prompts.none(len(lengths_R))
    found = packed_by_prompt(lengths_R, alone.of_R, alone.lengths_R, budget)
    assert [part.tolist() for part in found] == [part.tolist() for part in packed(lengths_R, budget)]
