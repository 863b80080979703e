"""Which experts a server took: asked for, checked, and put into the rows that are trained."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from asyncrl.data.routed_experts import COLUMN
from asyncrl.errors import PreflightError
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer
from asyncrl.inference.experts import ExpertCounts
from asyncrl.inference.protocol import Answer, Sampling
from asyncrl.rollout.builder import TrajectoryBuilder
from buffer import Span
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB, running_fake

COUNTS = ExpertCounts(layers=2, per_token=2, experts=8)


def chosen(token: int, position: int) -> list[list[int]]:
    """[layers, experts a token], different ones of every token and place."""
    return [[token % 8, position % 8], [position % 8, (token + 1) % 8]]


def text(numbers: object) -> str:
    return base64.b64encode(np.array(numbers, dtype="<i4").tobytes()).decode()


async def asked(server, ids: list[int], *, max_new_tokens: int = 8, experts: ExpertCounts | None = COUNTS) -> Answer:
    client = ServerClient(server.url, vocab_size=VOCAB, control_s=5.0, experts=experts)
    sampling = Sampling(max_new_tokens, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=7)
    return await client.generate(ids, sampling, extra_key=None, deadline_s=5.0)


@pytest.mark.parametrize("max_new_tokens", [8, 100])  # shared with others, and alone
@in_event_loop
async def test_an_answer_says_where_every_token_that_was_read_went(max_new_tokens: int) -> None:
    with running_fake(experts=chosen) as server:
        answer = await asked(server, [1, 5, 9], max_new_tokens=max_new_tokens)
        plain = await asked(server, [1, 5, 9], experts=None)
        asking, not_asking = server.questions()
    read = [1, 5, 9, *answer.token_ids[:-1]]
    assert answer.experts is not None
    assert answer.experts.dtype == np.int8
    assert answer.experts.tolist() == [chosen(token, at) for at, token in enumerate(read)]
    assert asking["return_routed_experts"] is True
    assert "return_routed_experts" not in not_asking
    assert plain.experts is None
    assert plain.token_ids == answer.token_ids


@in_event_loop
async def test_an_answer_that_was_cut_in_the_queue_is_kept_without_them() -> None:
    with running_fake(experts=chosen) as server:
        meta = {"finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}
        server.script.append(
            (200, {"output_ids": [7], "meta_info": {**meta, "output_token_logprobs": [[-0.5, 7, None]]}})
        )
        answer = await asked(server, [1, 5])
    assert (answer.token_ids, answer.experts) == ((7,), None)


@in_event_loop
async def test_a_server_that_does_not_say_is_named_with_its_flag() -> None:
    with running_fake() as server, pytest.raises(MalformedAnswer, match="--enable-return-routed-experts"):
        await asked(server, [1, 5])


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (text([0] * 7), r"has 7 numbers; 2 tokens read in 2 layers with 2 experts each make 8"),
        (text([0] * 7 + [300]), r"goes from 0 to 300, of 8 experts"),
        (text([0] * 7 + [-2]), r"goes from -2 to 0"),
        ("no base64!", r"is no base64 of int32"),
        (base64.b64encode(b"abc").decode(), r"is no base64 of int32"),
        ([1, 2], r"has no routed_experts"),
    ],
)
def test_a_record_that_cannot_be_right_is_refused(found: object, message: str) -> None:
    with pytest.raises(MalformedAnswer, match=message):
        COUNTS.decode(found, 2)


def test_what_a_server_writes_where_nothing_was_routed_is_no_expert() -> None:
    assert COUNTS.decode(text([255, 255, 1, 7]), 1).tolist() == [[[-1, -1], [1, 7]]]
    many = ExpertCounts(layers=1, per_token=1, experts=256)
    assert many.decode(text([255]), 1).tolist() == [[[255]]]
    assert many.decode(text([255]), 1).dtype == np.int16


def test_counts_are_read_from_the_model_directory(tmp_path: Path) -> None:
    settings = {"num_hidden_layers": 3, "num_experts_per_tok": 2, "num_local_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert ExpertCounts.of(tmp_path) == ExpertCounts(3, 2, 8)
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 3}))
    with pytest.raises(PreflightError, match=r"inference\.record_experts = true, but .*config\.json names no experts"):
        ExpertCounts.of(tmp_path)


def appended(builder: TrajectoryBuilder, num_tokens: int, mark: int) -> None:
    """An answer of so many tokens, whose server sent everything that it read to expert `mark`."""
    num_read = len(builder.token_ids) + num_tokens - 1
    record = np.full((num_read, 2, 2), mark, dtype=np.int8)
    builder.append_sampled([5] * num_tokens, [-0.1] * num_tokens, [Span(1, 1, num_tokens)], record)


def column(builder: TrajectoryBuilder) -> list[int]:
    """One number a token: where it went."""
    found = builder.rows()[-1].columns[COLUMN]
    assert (found == found[:, :1, :1]).all()
    return found[:, 0, 0].tolist()


def test_a_token_keeps_the_experts_that_its_successor_was_sampled_with() -> None:
    builder = TrajectoryBuilder()
    builder.begin_row([1, 1])
    appended(builder, 3, 3)
    assert column(builder) == [3, 3, 3, 3, -1]  # the last one was not read yet
    builder.append_context([9, 9])
    assert column(builder) == [3, 3, 3, 3, -1, -1, -1]
    appended(builder, 2, 4)  # by another server, which read the beginning anew
    assert column(builder) == [3, 3, 3, 3, 4, 4, 4, 4, -1]
    builder.begin_row([1])
    builder.append_sampled([5], [-0.1], [Span(1, 1, 1)])
    assert COLUMN not in builder.rows()[-1].columns
    assert COLUMN in builder.rows()[0].columns


def test_a_parked_row_goes_on_with_the_record_that_it_had() -> None:
    builder, other = TrajectoryBuilder(), TrajectoryBuilder()
    builder.begin_row([1, 1])
    appended(builder, 2, 3)
    builder.append_context([9])
    other.restore(builder.rows())
    assert column(other) == column(builder) == [3, 3, 3, -1, -1]
    appended(other, 1, 4)
    assert column(other) == [3, 3, 3, 4, 4, -1]
