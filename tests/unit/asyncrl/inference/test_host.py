"""A host beside servers that misbehave on order, over a version log in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from asyncrl import waits
from asyncrl.errors import ServerError
from asyncrl.inference.activation import Kv, Pausing
from asyncrl.inference.client import ServerClient
from asyncrl.inference.host import Host, HostSettings
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.stage_dir import StageDir
from tests.support.event_loop import in_event_loop
from tests.support.fake_receiver import FakeLog, FakeReceiver
from tests.support.fake_sglang import VOCAB, FakeServer, running_fake
from weightsync.receiver import Receiver

V1, V2 = 1 << 32 | 1, 1 << 32 | 2


class FakeManaged:
    """Gives each life the next of its servers; a life is ended by `die`."""

    def __init__(self, servers: list[FakeServer]) -> None:
        self.name, self.servers = "server-0", servers
        self.life = -1
        self.deaths: list[asyncio.Event] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ends_with: Callable[[], object] = lambda: None

    def url(self) -> str:
        self.life += 1
        self.deaths.append(asyncio.Event())
        return self.servers[min(self.life, len(self.servers) - 1)].url

    async def begin(self, url: str, stage_dir: Path, client: ServerClient) -> None:
        await client.model_info()

    async def ended(self) -> int:
        await self.deaths[-1].wait()
        return -9

    async def end(self) -> None:
        self.ends_with()
        await self.may_end.wait()


class Setting:
    """A log, servers, and a host beside them."""

    def __init__(self, stack: ExitStack, tmp_path: Path) -> None:
        self._stack, self._tmp_path = stack, tmp_path
        self.log = FakeLog()
        self.servers: list[FakeServer] = []
        self.reports: list[Mapping[str, float | str]] = []

    def server(self, start: int = 0, **settings: Any) -> FakeServer:
        server = self._stack.enter_context(running_fake(**settings))
        self.log.loads_into(server, start)
        self.servers.append(server)
        return server

    @asynccontextmanager
    async def hosting(self, *, kv: Kv = "recompute", **settings: Any) -> AsyncIterator[tuple[Host, FakeManaged]]:
        managed = FakeManaged(self.servers)
        host = Host(
            managed,
            stage=StageDir.of_started(str(self._tmp_path), self._tmp_path, "server-0"),
            make_client=lambda url: ServerClient(url, vocab_size=VOCAB, control_s=5.0),
            make_receiver=lambda *args: cast(Receiver, FakeReceiver(self.log, *args)),
            pausing=Pausing(kv=kv, num_ranks=2, deadline_s=5.0),
            settings=HostSettings(**{"max_restarts": 3, "renew_every_s": 0.02, **settings}),
            report=lambda name, facts: self.reports.append(facts),
        )
        stop = asyncio.Event()
        running = asyncio.create_task(host.run(stop))
        try:
            yield host, managed
        finally:
            stop.set()
            await running

    async def serving(self, version: int, times: int = 1) -> None:
        """Wait until `version` was acknowledged as served so many times."""
        await until(
            lambda: [ack[1:] for ack in self.log.acks].count((version, "serving")) >= times,
            lambda: f"{self.log.acks} {self.log.needs} {self.log.states}",
        )


async def until(condition: Callable[[], bool], why: Callable[[], str] = str) -> None:
    await waits.until("test", lambda: condition() or None, why=why, deadline_s=10.0, recheck_s=0.01)


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack, tmp_path)


@in_event_loop
async def test_a_server_is_inspected_then_acknowledged_then_brought_to_head(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (host, _):
        await setting.serving(0)
        assert server.label == "0.0", "its answers carry our label from the start"
        server.requests.clear()
        setting.log.publish(V1)
        await setting.serving(V1)
        await until(lambda: server.paused is None)
        asked = [path for path, _ in server.requests if path not in ("/model_info", "/v1/loads")]
        assert asked[:4] == [
            "/get_weights_by_name",  # is it prepared?
            "/pause_generation",
            "/begin_weight_update",
            "/update_weights_from_tensor",
        ]
        assert sorted(asked[4:6]) == ["/end_weight_update", "/get_weights_by_name"], "at once"
        assert asked[6:] == ["/update_weight_version", "/continue_generation"]
        assert server.bodies("/pause_generation") == [{"mode": "retract"}]
        assert len(server.bodies("/update_weights_from_tensor")[0]["serialized_named_tensors"]) == 2
        assert server.bodies("/update_weights_from_tensor")[0]["flush_cache"] is True
        assert host.facts.counts["activations"] == 1
        assert 0 < host.facts.counts["last_pause_s"] < 5
        assert host.facts.counts["longest_pause_s"] == host.facts.counts["last_pause_s"]
        assert host.facts.counts["staged_bytes"] == 100
        await until(lambda: setting.reports[-1]["version"] == "1.1")
    assert setting.log.states[-1] == "serving"
    assert len(setting.log.left) == 1, "its word is taken back when it stops in order"
    assert setting.log.renewals > 0


@in_event_loop
async def test_it_is_out_of_rotation_while_it_is_updated(setting: Setting) -> None:
    setting.server()
    setting.log.publish(0)
    async with setting.hosting():
        await setting.serving(0)
        setting.log.publish(V1)
        await setting.serving(V1)
    assert setting.log.states == ["updating", "serving", "updating", "serving"]


@in_event_loop
async def test_kept_caches_are_not_flushed_because_the_update_would_be_refused_after_it_was_written(
    setting: Setting,
) -> None:
    server = setting.server()
    setting.log.publish(V1)
    async with setting.hosting(kv="keep"):
        await setting.serving(V1)
    assert {body["mode"] for body in server.bodies("/pause_generation")} == {"in_place"}
    assert {body["flush_cache"] for body in server.bodies("/update_weights_from_tensor")} == {False}


@in_event_loop
async def test_before_the_trainer_wrote_version_0_the_host_waits(setting: Setting) -> None:
    server = setting.server()
    async with setting.hosting() as (host, _):
        await until(lambda: host.facts.counts.get("lives") == 1)
        assert server.bodies("/pause_generation") == []
        setting.log.publish(0)
        await setting.serving(0)


@in_event_loop
async def test_a_new_host_beside_an_old_server_asks_the_engine_instead_of_loading_again(setting: Setting) -> None:
    server = setting.server(start=V1, session=True, paused="retract")
    setting.log.versions = [0, V1]
    async with setting.hosting() as (host, _):
        await setting.serving(V1)
        assert host.facts.counts.get("activations", 0) == 0
        assert server.label == "1.1"
        assert server.paused is None


@in_event_loop
async def test_weights_that_nobody_published_are_replaced_whole_and_nothing_runs_on_them(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(0)
    server.loader = lambda server: setattr(server, "status", [0, 0, 0, 0, 666, 0])
    setting.log.anchors = False
    async with setting.hosting() as (host, _):
        await until(lambda: "no path" in setting.log.needs)
        assert host.facts.state == "failed"
        assert server.paused is not None
        setting.log.loads_into(server)
        setting.log.anchors = True
        setting.log.publish(V1)
        await setting.serving(V1)
        await until(lambda: server.paused is None)
        assert setting.log.ticket is not None
        assert setting.log.ticket.kind == "anchor"


@in_event_loop
async def test_a_refused_delta_leaves_rotation_reports_and_loads_an_anchor(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (host, _):
        await setting.serving(0)
        good = server.loader
        refusals = []

        def refuse_once(server: FakeServer) -> None:
            if refusals:
                good(server)
            else:
                refusals.append(1)
                server.status = [3, 0, 0, 0, 1000, 0]

        server.loader = refuse_once
        setting.log.publish(V1)
        await setting.serving(V1)
        assert "code 3" in setting.log.needs[0]
        assert "failed" in setting.log.states
        assert setting.log.ticket is not None
        assert setting.log.ticket.kind == "anchor"
        assert host.facts.counts["activation_failures"] == 1
        # Weights that the loader left alone may be sampled with meanwhile: the first pause was ended at once.
        assert server.paths.count("/continue_generation") >= 3


@in_event_loop
async def test_a_wrong_digest_keeps_the_server_paused_until_it_has_whole_weights(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(0)
    async with setting.hosting():
        await setting.serving(0)
        good, paused_at_second_load = server.loader, []

        def spoil_once(server: FakeServer) -> None:
            if not paused_at_second_load:
                server.status = [0, 1, 1, 0, 666, 0]
                paused_at_second_load.append(False)
            else:
                paused_at_second_load[0] = "/continue_generation" not in server.paths[mark:]
                good(server)

        mark = len(server.paths)
        server.loader = spoil_once
        setting.log.publish(V1)
        await setting.serving(V1)
        assert paused_at_second_load == [True]


@in_event_loop
async def test_an_error_while_writing_leaves_weights_of_no_version_although_the_digest_is_the_old_one(
    setting: Setting,
) -> None:
    server = setting.server()
    setting.log.publish(0)
    setting.log.anchors = False
    async with setting.hosting() as (host, _):
        await setting.serving(0)
        unknown = 2**32 - 1
        server.loader = lambda server: setattr(server, "status", [9, unknown, unknown, 0, 1000, 0])
        setting.log.publish(V1)
        await until(lambda: "no path" in setting.log.needs)
        assert server.paused is not None
        assert host.facts.state == "failed"


@in_event_loop
async def test_a_version_that_is_held_already_is_no_failure(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (host, _):
        await setting.serving(0)
        server.loader = lambda server: setattr(server, "status", [2, 1, 1, V1 + 1000 >> 32, V1 + 1000 & 2**32 - 1, 0])
        setting.log.publish(V1)
        await setting.serving(V1)
        assert host.facts.counts.get("activation_failures", 0) == 0


@in_event_loop
async def test_a_server_that_never_takes_weights_gets_another_life(setting: Setting) -> None:
    """B056: a refusal is tried again three times in a life, and lives have a growing pause between them."""
    broken = setting.server()
    setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (host, managed):
        await setting.serving(0)
        broken.loader = lambda server: setattr(server, "status", [3, 0, 0, 0, 1000, 0])
        setting.log.publish(V1)
        await setting.serving(V1)
        assert managed.life == 1
        assert host.facts.counts["activation_failures"] == 3
        assert host.facts.counts["restarts"] == 1
    assert broken.paths.count("/update_weights_from_tensor") == 1 + 3, "an inspection, then the tries"


@in_event_loop
async def test_a_server_that_dies_is_started_again_and_catches_up_under_another_incarnation(setting: Setting) -> None:
    setting.server()
    setting.server()
    setting.log.versions = [0, V1]
    async with setting.hosting() as (_, managed):
        await setting.serving(V1)
        managed.deaths[-1].set()
        await setting.serving(V1, times=2)
    lives = [incarnation for incarnation, version, state in setting.log.acks if (version, state) == (V1, "serving")]
    assert len(set(lives)) == 2
    assert (lives[0], "starting") in setting.log.withdrawn, "a dead server's word is taken back"
    assert setting.log.left == [lives[1]], "it is on the roster from its first start to its host's end"
    assert set(setting.log.closed) >= {lives[0]}, "what is dead brings nothing for others"


@in_event_loop
async def test_a_server_whose_process_still_ends_gets_no_request_and_is_not_gone(setting: Setting) -> None:
    setting.server()
    setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (_, managed):
        await setting.serving(0)
        managed.may_end.clear()
        managed.deaths[-1].set()
        await until(lambda: setting.log.states[-1] == "starting")
        before = setting.log.renewals
        await until(lambda: setting.log.renewals > before + 2)
        assert managed.life == 0
        assert setting.log.states[-1] == "starting"
        assert setting.log.left == [], "who waits for its device must not take it for gone"
        managed.may_end.set()
        await setting.serving(0, times=2)
    assert len(setting.log.left) == 1


@in_event_loop
async def test_a_host_that_stops_takes_its_servers_word_back_before_the_process_ends(setting: Setting) -> None:
    setting.server()
    setting.log.publish(0)
    async with setting.hosting() as (_, managed):
        await setting.serving(0)
        managed.may_end.clear()
        stopping = asyncio.create_task(_allow_end(managed, setting))
    await stopping
    assert setting.log.states[-1] == "serving", "it left; nothing was said after that"


async def _allow_end(managed: FakeManaged, setting: Setting) -> None:
    await until(lambda: len(setting.log.left) == 1)
    managed.may_end.set()


@in_event_loop
async def test_a_server_that_hangs_is_started_again(setting: Setting) -> None:
    hanging = setting.server()
    setting.server()
    setting.log.publish(0)
    async with setting.hosting(probe_deadline_s=0.05, max_probe_failures=2) as (host, managed):
        await setting.serving(0)
        hanging.do_model_info = lambda body: (503, {})  # type: ignore[method-assign]  # the one misbehaviour
        await setting.serving(0, times=2)
        assert managed.life == 1
        assert "probes in a row failed" in host.facts.trouble or host.facts.counts["restarts"] == 1


@in_event_loop
async def test_lives_are_bounded_and_the_last_reason_is_told(setting: Setting) -> None:
    setting.server()
    setting.log.publish(0)

    async def die() -> None:
        async with setting.hosting(max_restarts=0) as (_, managed):
            await setting.serving(0)
            managed.deaths[-1].set()
            await until(lambda: len(setting.log.left) == 1)

    with pytest.raises(ServerError, match=r"inference\.max_restarts = 0.*exit code -9"):
        await die()


@in_event_loop
async def test_a_server_sleeps_when_asked_and_comes_back_with_weights_that_were_checked(setting: Setting) -> None:
    server = setting.server(hold=True)
    setting.log.publish(0)
    async with setting.hosting():
        await setting.serving(0)
        client = ServerClient(server.url, vocab_size=VOCAB)
        sampling = Sampling(8, 1.0, 1.0, -1, (2,), 7)
        asking = asyncio.create_task(client.generate([1], sampling, extra_key=None, deadline_s=10.0))
        await until(lambda: len(server.running) == 1)
        setting.log.wish("sleep")
        answer = await asking
        assert answer.finish_reason == "abort"
        assert len(answer.token_ids) == 2, "what was sampled is kept"
        await until(lambda: setting.log.states[-1] == "asleep")
        assert server.asleep
        assert server.paused == "abort"
        setting.log.publish(V1)
        setting.log.wish("serve")
        await setting.serving(V1)
        await client.close()
    assert not server.asleep
    assert server.paused is None
    woken = server.paths[server.paths.index("/resume_memory_occupation") :]
    assert woken.count("/update_weights_from_tensor") == 2, "an inspection, then the version that came meanwhile"


@in_event_loop
async def test_weights_lost_in_sleep_are_loaded_again(setting: Setting) -> None:
    server = setting.server()
    setting.log.publish(V1)
    async with setting.hosting():
        await setting.serving(V1)
        setting.log.wish("sleep")
        await until(lambda: setting.log.states[-1] == "asleep")
        good, spoiled = server.loader, []

        def lost(server: FakeServer) -> None:
            ticket = setting.log.ticket
            assert ticket is not None
            if ticket.kind == "inspect" and not spoiled:
                spoiled.append(1)
                server.status = [0, 1, 1, 0, 666, 0]
            else:
                good(server)

        server.loader = lost
        setting.log.wish("serve")
        await setting.serving(V1, times=2)
    assert setting.log.ticket is not None
    assert setting.log.ticket.kind == "anchor"
