"""Where processes run: what must hold when that is more than one machine, and how a wait for room is given up."""

import asyncio
import sys
from pathlib import Path

import pytest

from asyncrl.cluster import CLUSTERS, ClusterSetup, LocalCluster, open_cluster
from asyncrl.config import ClusterConfig, Config, InferenceConfig, ScheduleConfig, TeacherConfig, WeightsyncConfig
from asyncrl.errors import PreflightError
from asyncrl.run.machines import require_lent_servers_reachable, require_reachable, unless_stopped
from tests.support.event_loop import in_event_loop

TWO = ("10.0.0.4", "10.0.0.5")
REDIS = "redis://10.0.0.9:6379"
NETWORK = InferenceConfig(host="10.0.0.0/24")


def test_one_machine_needs_no_address() -> None:
    require_reachable(Config(), "unix:///tmp/redis.sock", ("10.0.0.4",))


@pytest.mark.parametrize("url", ["unix:///tmp/redis.sock", "redis://localhost:6379", "redis://127.0.0.1:6379/0"])
def test_a_redis_of_this_machine_is_refused_on_two(url: str) -> None:
    with pytest.raises(PreflightError, match=r"2 machines \(10\.0\.0\.4, 10\.0\.0\.5\).*buffer\.url"):
        require_reachable(Config(inference=NETWORK), url, TWO)


def test_servers_that_only_their_machine_reaches_are_refused_on_two() -> None:
    with pytest.raises(PreflightError, match=r"inference\.host = 127\.0\.0\.1"):
        require_reachable(Config(), REDIS, TWO)
    require_reachable(Config(inference=NETWORK), REDIS, TWO)


def test_lent_servers_that_other_machines_would_look_for_at_home_are_refused() -> None:
    lends = ScheduleConfig(lend_trainer_gpus=True)
    with pytest.raises(PreflightError, match=r"lend_trainer_gpus with inference\.host = 127\.0\.0\.1"):
        require_lent_servers_reachable(Config(schedule=lends), REDIS)
    require_lent_servers_reachable(Config(schedule=lends, inference=NETWORK), REDIS)
    require_lent_servers_reachable(Config(schedule=lends), "unix:///tmp/redis.sock")
    require_lent_servers_reachable(Config(schedule=lends, mode="sync"), REDIS)
    require_lent_servers_reachable(Config(), REDIS)


def test_weights_that_only_the_trainers_machine_could_read_are_refused_on_two() -> None:
    config = Config(inference=NETWORK, weightsync=WeightsyncConfig(transport="tcp"))
    with pytest.raises(PreflightError, match=r"weightsync\.tcp\.bind = 127\.0\.0\.1"):
        require_reachable(config, REDIS, TWO)


def test_a_teacher_without_an_address_is_refused_on_two() -> None:
    config = Config(inference=NETWORK, teachers=(TeacherConfig(name="large", path=Path("model")),))
    with pytest.raises(PreflightError, match="teacher 'large'"):
        require_reachable(config, REDIS, TWO)


def test_a_backend_whose_library_is_missing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "asyncrl.cluster.ray", raising=False)
    setup = ClusterSetup(run="demo", log_dir=tmp_path, env={}, config=ClusterConfig(backend="ray"))
    with pytest.raises(PreflightError, match=r"pip install 'asyncrl\[ray\]'"):
        open_cluster(setup)


def test_every_backend_that_may_be_written_has_its_module(tmp_path: Path) -> None:
    allowed = ClusterConfig.model_fields["backend"].annotation
    assert set(CLUSTERS) == set(getattr(allowed, "__args__", ()))
    setup = ClusterSetup(run="demo", log_dir=tmp_path, env={}, config=ClusterConfig())
    assert isinstance(open_cluster(setup), LocalCluster)


def test_adopted_servers_are_not_for_a_cluster_that_chooses_the_machines() -> None:
    servers = InferenceConfig(urls=("http://10.0.0.4:30000",))
    with pytest.raises(ValueError, match=r"inference\.urls with cluster\.backend = ray"):
        Config(cluster=ClusterConfig(backend="ray"), inference=servers)


def test_an_address_without_its_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cluster\.ray_address.*no effect"):
        ClusterConfig(ray_address="10.0.0.4:6379")


@in_event_loop
async def test_a_stop_ends_the_wait_for_room() -> None:
    stop, ended = asyncio.Event(), asyncio.Event()

    async def waits_for_room() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "placed"

    asyncio.get_running_loop().call_soon(stop.set)
    assert await unless_stopped(stop, waits_for_room()) is None
    await ended.wait()


@in_event_loop
async def test_without_a_stop_the_result_or_the_error_of_the_wait_comes_through() -> None:
    async def placed() -> str:
        return "placed"

    async def fails() -> str:
        raise PreflightError("no devices")

    assert await unless_stopped(asyncio.Event(), placed()) == "placed"
    with pytest.raises(PreflightError, match="no devices"):
        await unless_stopped(asyncio.Event(), fails())
