"""What a host does when an operator asks, and when its server is no longer the one that it looked after."""

import asyncio

import pytest

from asyncrl.errors import ServerError
from asyncrl.inference import draining, host
from asyncrl.inference.client import ServerClient
from asyncrl.inference.protocol import Answer, Sampling
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB, FakeServer
from tests.unit.asyncrl.inference.test_host import V1, Setting, setting, until
from weightsync.acks import Vitals
from weightsync.orders import Order

__all__ = ["setting"]

SAMPLING = Sampling(8, 1.0, 1.0, -1, (2,), 7)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "CALM_S", 0.05)
    monkeypatch.setattr(host, "BACK_OFF_S", (0.05, 0.1))


async def asked(server: FakeServer) -> "asyncio.Task[Answer]":
    """A request that is there and not answered yet."""
    client = ServerClient(server.url, vocab_size=VOCAB)

    async def ask() -> Answer:
        try:
            return await client.generate([1], SAMPLING, extra_key=None, deadline_s=10.0)
        finally:
            await client.close()

    asking = asyncio.create_task(ask())
    await until(lambda: len(server.running) == 1)
    return asking


@in_event_loop
async def test_a_server_that_is_to_leave_answers_what_it_has_and_stands_by_until_it_is_wanted_back(
    setting: Setting,
) -> None:
    server = setting.server(hold=True)
    setting.log.publish(0)
    async with setting.hosting() as (looked_after, managed):
        await setting.serving(0)
        asking = await asked(server)
        setting.log.ask(Order("leave", 30.0, "n"))
        await until(lambda: setting.log.states[-1] == "draining")
        assert "asked it to leave" in setting.log.reasons[-1]
        assert not asking.done(), "it has half a minute"
        server.release()
        assert (await asking).finish_reason == "stop"
        await until(lambda: setting.log.states[-1] == "drained")
        assert managed.life == 0
        assert looked_after.facts.state == "drained"
        assert "restore" in setting.log.reasons[-1]
        before = setting.log.renewals
        await until(lambda: setting.log.renewals > before + 2, lambda: "its host is still there, and says so")
        setting.log.ask(None)
        await setting.serving(0, times=2)
        assert managed.life == 1
        assert looked_after.facts.counts.get("restarts", 0) == 0, "that is no fault of the server's"
    lives = {incarnation for incarnation, _, state in setting.log.acks if state == "serving"}
    assert len(lives) == 2


@in_event_loop
async def test_what_is_not_answered_in_time_is_answered_as_far_as_it_is(setting: Setting) -> None:
    server = setting.server(hold=True)
    setting.log.publish(0)
    async with setting.hosting():
        await setting.serving(0)
        asking = await asked(server)
        setting.log.ask(Order("leave", 0.0, "n"))
        answer = await asking
        assert (answer.finish_reason, len(answer.token_ids)) == ("abort", 2)
        await until(lambda: setting.log.states[-1] == "drained")
        setting.log.ask(None)
        server.release()
        await setting.serving(0, times=2)


@in_event_loop
async def test_a_server_ends_when_what_it_was_told_to_cut_is_answered(setting: Setting) -> None:
    server = setting.server(hold=True)
    setting.log.publish(0)
    async with setting.hosting() as (_, managed):
        await setting.serving(0)
        abort, looks, cut = server.do_abort_request, 0, []

        def abort_later(body: object) -> tuple[int, object]:
            cut.append(body)
            return 200, {}

        def loads_twice(body: object) -> tuple[int, object]:
            nonlocal looks
            looks += bool(cut)
            if looks == 2:
                abort(cut[0])  # between two steps of its own
            return 200, {"loads": [{"num_running_reqs": len(server.running), "num_waiting_reqs": 0}]}

        server.do_abort_request, server.do_v1_loads = abort_later, loads_twice  # type: ignore[method-assign]
        asking = await asked(server)
        managed.ends_with = lambda: asking_done.append(asking.done() or not server.running)
        asking_done: list[bool] = []
        setting.log.ask(Order("leave", 0.0, "n"))
        assert (await asking).finish_reason == "abort"
        await until(lambda: setting.log.states[-1] == "drained")
        assert asking_done == [True]
        assert looks > 2


@in_event_loop
async def test_a_replaced_server_has_another_life_and_the_order_is_obeyed_once(setting: Setting) -> None:
    setting.server()
    setting.server()
    setting.log.publish(V1)
    async with setting.hosting(max_restarts=0) as (_, managed):
        await setting.serving(V1)
        setting.log.ask(Order("replace", 5.0, "n"))
        await setting.serving(V1, times=2)
        assert managed.life == 1
        assert setting.log.order is None


@in_event_loop
async def test_a_server_that_was_to_leave_before_its_host_began_is_not_started(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(0)
    setting.log.order = Order("leave", 5.0, "n")
    async with setting.hosting() as (looked_after, _):
        await until(lambda: setting.log.states[-1:] == ["drained"])
        assert looked_after.facts.counts.get("served_lives", 0) == 0
        assert server.bodies("/generate") == []
        setting.log.ask(None)
        await setting.serving(0)


@in_event_loop
async def test_a_server_behind_whose_back_weights_changed_is_looked_at_again(setting: Setting) -> None:
    """An owner started it again, faster than two probes: it answers all the time, with its first weights."""
    server = setting.server()
    setting.log.publish(V1)
    async with setting.hosting() as (looked_after, managed):
        await setting.serving(V1)
        setting.log.loads_into(server, 0)
        server.label = "default"
        await setting.serving(V1, times=2)
        assert managed.life == 1
        assert server.label == "1.1"
        assert "started it again" in looked_after.facts.trouble or "started it again" in "".join(setting.log.reasons)
        assert looked_after.facts.counts["restarts"] == 1


@in_event_loop
async def test_an_engine_that_hangs_behind_http_that_answers_is_noticed(setting: Setting) -> None:
    hanging = setting.server()
    setting.server()
    setting.log.publish(0)
    async with setting.hosting(probe_deadline_s=0.1, max_probe_failures=2) as (_, managed):
        await setting.serving(0)
        hanging.do_v1_loads = lambda body: (503, {"error": "the scheduler does not answer"})  # type: ignore[method-assign]  # the one misbehaviour
        await setting.serving(0, times=2)
        assert managed.life == 1
        assert any("probes in a row failed" in reason for reason in setting.log.reasons)


@in_event_loop
async def test_signs_of_life_say_how_much_the_server_has_to_do(setting: Setting) -> None:
    server = setting.server(hold=True)
    setting.log.publish(0)
    async with setting.hosting():
        await setting.serving(0)
        asking = await asked(server)
        await until(lambda: setting.log.vitals == Vitals(1, 0, 0), lambda: str(setting.log.vitals))
        server.release()
        await asking
        await until(lambda: setting.log.vitals == Vitals(0, 0, 0), lambda: str(setting.log.vitals))


@in_event_loop
async def test_deaths_before_a_long_life_are_forgiven_and_the_reason_is_told_while_it_waits(setting: Setting) -> None:
    setting.server()
    setting.log.publish(0)
    async with setting.hosting(max_restarts=1, forgiven_s=0.0) as (looked_after, managed):
        for life in range(4):
            await setting.serving(0, times=life + 1)
            managed.deaths[-1].set()
        await setting.serving(0, times=5)
        assert looked_after.facts.counts["restarts"] == 4
    reasons = [reason for reason in setting.log.reasons if "exit code -9" in reason]
    assert len(reasons) == 4
    assert all(reason.startswith("life 2 of 2 begins in 0.05 s") for reason in reasons)


@in_event_loop
async def test_how_long_a_life_takes_to_serve_head_is_measured(setting: Setting) -> None:
    setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (looked_after, managed):
        await setting.serving(0)
        first = looked_after.facts.counts["last_to_head_s"]
        assert 0 < first < 10
        managed.deaths[-1].set()
        await setting.serving(0, times=2)
        await until(lambda: looked_after.facts.counts["last_to_head_s"] != first)
        assert looked_after.facts.counts["served_lives"] == 2


@in_event_loop
async def test_an_adopted_server_whose_loader_looks_elsewhere_is_refused_with_the_folder_that_it_should_know(
    setting: Setting,
) -> None:
    server = setting.server()
    setting.log.publish(0)
    unknown = 2**32 - 1
    server.loader = lambda server: setattr(server, "status", [3, unknown, unknown, 0, 0, 0])

    async def adopt() -> None:
        async with setting.hosting():
            await until(lambda: len(setting.log.left) == 1)

    with pytest.raises(ServerError, match=r"left no note in .*ASYNCRL_STAGE_DIR=.*start it so"):
        await adopt()
