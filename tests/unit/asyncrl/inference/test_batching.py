"""Short questions share a request; long ones, and the one that is refused, do not hold up the others."""

import asyncio
from dataclasses import replace

from asyncrl.inference.batching import MAX_QUESTIONS, MAX_TOKENS
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import RequestRefused, ServerUnavailable
from asyncrl.inference.protocol import Answer, Sampling
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import DROP, VOCAB, FakeServer, running_fake

SHORT = Sampling(max_new_tokens=8, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(2,), seed=0)


def client_of(server: FakeServer) -> ServerClient:
    return ServerClient(server.url, vocab_size=VOCAB)


async def ask(client: ServerClient, seed: int, **changes: object) -> Answer:
    sampling = replace(SHORT, seed=seed, **changes)  # type: ignore[arg-type]  # fields by name
    return await client.generate([1, 10 + seed % 50], sampling, extra_key="1.1", deadline_s=5.0)


@in_event_loop
async def test_questions_asked_together_are_one_request_and_get_their_own_answers() -> None:
    with running_fake() as server:
        client = client_of(server)
        together = await asyncio.gather(*(ask(client, seed) for seed in range(16)))
        assert len(server.bodies("/generate")) == 1
        assert len({one["rid"] for one in server.questions()}) == 16
        alone = [await ask(client, seed) for seed in range(16)]
        assert together == alone
        await client.close()


@in_event_loop
async def test_a_request_takes_so_many_questions_at_most_and_of_one_version() -> None:
    with running_fake() as server:
        client = client_of(server)
        tasks = [ask(client, seed) for seed in range(MAX_QUESTIONS + 1)]
        tasks.append(client.generate([1], SHORT, extra_key="1.2", deadline_s=5.0))
        await asyncio.gather(*tasks)
        sizes = {body["extra_key"]: [] for body in server.bodies("/generate")}
        for body in server.bodies("/generate"):
            sizes[body["extra_key"]].append(len(body["rid"]) if isinstance(body["rid"], list) else 1)
        assert sorted(sizes["1.1"]) == [1, MAX_QUESTIONS]
        assert sizes["1.2"] == [1]
        await client.close()


@in_event_loop
async def test_a_question_with_a_long_answer_is_asked_alone() -> None:
    with running_fake() as server:
        client = client_of(server)
        await asyncio.gather(*(ask(client, seed, max_new_tokens=MAX_TOKENS + 1) for seed in range(3)))
        assert len(server.bodies("/generate")) == 3
        await client.close()


@in_event_loop
async def test_a_client_that_does_not_batch_asks_each_question_by_itself() -> None:
    with running_fake() as server:
        client = ServerClient(server.url, vocab_size=VOCAB, batches=False)
        await asyncio.gather(*(ask(client, seed) for seed in range(3)))
        assert len(server.bodies("/generate")) == 3
        await client.close()


@in_event_loop
async def test_one_refused_question_costs_its_mates_nothing() -> None:
    with running_fake(refused=[1, 12]) as server:
        client = client_of(server)
        answers = await asyncio.gather(*(ask(client, seed) for seed in range(4)), return_exceptions=True)
        assert [isinstance(answer, RequestRefused) for answer in answers] == [False, False, True, False]
        await client.close()


@in_event_loop
async def test_a_dropped_request_fails_all_of_its_questions() -> None:
    with running_fake() as server:
        client = client_of(server)
        server.script.append(DROP)
        answers = await asyncio.gather(*(ask(client, seed) for seed in range(4)), return_exceptions=True)
        assert all(isinstance(answer, ServerUnavailable) for answer in answers)
        await client.close()


@in_event_loop
async def test_an_episode_that_is_cancelled_leaves_its_mates_their_answers() -> None:
    with running_fake(hold=True) as server:
        client = client_of(server)
        tasks = [asyncio.create_task(ask(client, seed)) for seed in range(3)]
        while len(server.running) < 3:
            await asyncio.wait(tasks, timeout=0.01)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        server.release()
        assert len(await asyncio.gather(*tasks[1:])) == 2
        await client.close()


@in_event_loop
async def test_when_nobody_waits_any_more_the_request_is_aborted_by_closing_its_connection() -> None:
    with running_fake(hold=True) as server:
        client = client_of(server)
        tasks = [asyncio.create_task(ask(client, seed)) for seed in range(2)]
        while len(server.running) < 2:
            await asyncio.wait(tasks, timeout=0.01)
        connection = next(iter(server.writers))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        gone = asyncio.create_task(until_closed(server, connection))
        await asyncio.wait_for(gone, 5.0)
        await client.close()


async def until_closed(server: FakeServer, connection: asyncio.StreamWriter) -> None:
    server.release()
    while connection in server.writers:
        await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=0.01)


@in_event_loop
async def test_closing_the_client_lets_what_is_asked_end() -> None:
    with running_fake(hold=True) as server:
        client = client_of(server)
        task = asyncio.create_task(ask(client, 0))
        while not server.running:
            await asyncio.wait([task], timeout=0.01)
        await client.close()
        server.release()
        assert (await task).token_ids
