"""The fast engine answers as a server does: what is measured against it has been through the real client."""

import asyncio
from dataclasses import replace

import pytest

from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.streaming import Watch
from tests.support.event_loop import in_event_loop
from tests.support.fast_engine import Settings, running_engine

SIGN, STOP = 50, 2
FAST = Settings(tokens_per_s=100_000, sign_id=SIGN, stop_id=STOP, label="1.4", answer_tokens=6)


def sampling(most: int) -> Sampling:
    return Sampling(most, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(STOP,), seed=1)


def client_of(url: str) -> ServerClient:
    return ServerClient(url, vocab_size=100)


@in_event_loop
async def test_an_answer_is_what_stands_behind_the_last_sign_of_its_own_prompt() -> None:
    with running_engine(FAST) as url:
        client = client_of(url)
        prompts = [[7, SIGN, 60, STOP, SIGN, 10 + at, 60 + at, STOP, 9] for at in range(39)]
        asked = (client.generate(prompt, sampling(30), extra_key=None, deadline_s=10) for prompt in prompts)
        answers = await asyncio.gather(*asked)
        assert [answer.token_ids for answer in answers] == [(10 + at, 60 + at, STOP) for at in range(39)]
        assert {answer.finish_reason for answer in answers} == {"stop"}
        assert {run.label for answer in answers for run in answer.runs} == {"1.4"}
        await client.close()


@in_event_loop
async def test_an_answer_that_was_cut_goes_on_from_its_tokens() -> None:
    with running_engine(FAST) as url:
        client = client_of(url)
        prompt = [7, SIGN, 60, 61, 62, 63, STOP, 9]
        whole: list[int] = []
        while STOP not in whole:
            answer = await client.generate([*prompt, *whole], sampling(2), extra_key=None, deadline_s=10)
            whole += answer.token_ids
        assert whole == [60, 61, 62, 63, STOP]
        await client.close()


@pytest.mark.parametrize(("most", "expected"), [(2, (3, 3)), (6, (3, 3, 3, 3, 3, STOP)), (99, (3, 3, 3, 3, 3, STOP))])
@in_event_loop
async def test_without_a_sign_it_has_its_own_length_or_what_was_allowed(most: int, expected: tuple[int, ...]) -> None:
    with running_engine(FAST) as url:
        client = client_of(url)
        answer = await client.generate([7, 8], sampling(most), extra_key=None, deadline_s=10)
        assert answer.token_ids == expected
        assert answer.finish_reason == ("length" if most < 6 else "stop")
        await client.close()


@in_event_loop
async def test_tokens_take_their_time_and_an_abort_ends_it() -> None:
    with running_engine(Settings(tokens_per_s=20, answer_tokens=1000)) as url:
        client, loop = client_of(url), asyncio.get_running_loop()
        begun = loop.time()
        await client.generate([7], sampling(4), extra_key=None, deadline_s=10)
        assert loop.time() - begun >= 4 / 20
        rid = client.next_rid()
        long = asyncio.ensure_future(client.generate([7], sampling(900), extra_key=None, deadline_s=30, rid=rid))
        while not long.done():
            await client.abort(rid)
        assert (await long).finish_reason == "abort"
        with pytest.raises(ServerUnavailable):
            await client.generate([7], sampling(900), extra_key=None, deadline_s=0.2)
        await client.close()


@in_event_loop
async def test_a_streamed_answer_comes_in_pieces_that_are_those_of_the_whole_one() -> None:
    with running_engine(replace(FAST, tokens_per_s=200.0)) as url:
        client, pieces = client_of(url), list[list[int]]()
        prompt = [7, SIGN, 60, 61, 62, 63, 64, STOP, 9]
        watch = Watch(2, lambda ids: pieces.append(list(ids)))
        answer = await client.generate(prompt, sampling(30), extra_key=None, deadline_s=10, watch=watch)
        assert pieces == [[60, 61], [62, 63], [64, STOP]]
        assert answer == await client.generate(prompt, sampling(30), extra_key=None, deadline_s=10)
        await client.close()


@in_event_loop
async def test_a_streamed_answer_that_does_not_end_in_time_is_what_was_shown_of_it() -> None:
    with running_engine(replace(FAST, tokens_per_s=20.0, answer_tokens=400)) as url:
        client, shown = client_of(url), list[int]()
        watch = Watch(1, shown.extend)
        answer = await client.generate([7], sampling(400), extra_key=None, deadline_s=0.4, watch=watch)
        assert answer.finish_reason == "abort"
        assert 0 < len(answer.token_ids) < 20
        assert list(answer.token_ids) == shown
        assert answer.one_version
        assert [run.label for run in answer.runs] == [""], "the fleet knows the oldest that it may be"
        await client.close()
