"""What becomes of Ray's answers and errors; a real Ray is in tests/e2e/test_ray.py."""

import socket
import threading
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from asyncrl.cluster import ray as module
from asyncrl.cluster.address import why_unreachable
from asyncrl.cluster.machines import CallLost, KeeperLost, Unanswered
from asyncrl.cluster.ray import RayMachines
from asyncrl.errors import ClusterLost, PreflightError


class Head:
    """A head that is there until the test says that it is lost."""

    why_lost = ""

    def __init__(self, address: str, patience_s: float) -> None:
        self.address, self.patience_s = address, patience_s

    def close(self) -> None:
        """Nobody looks."""


class Context:
    """What Ray says of its head."""

    gcs_address = "10.0.0.4:6379"


class Method:
    """A method of an actor, called from elsewhere."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def remote(self) -> str:
        self.calls.append("end")
        return "ended"


class Actor:
    """A keeper that remembers how it was ended."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.end = Method(self.calls)


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> RayMachines:
    """Of a Ray that is not there; calls are what they answer, or the error that they raise."""

    monkeypatch.setattr(module, "HeadWatch", Head)
    monkeypatch.setattr(ray, "get_runtime_context", Context)

    def get(call: Any) -> Any:
        if isinstance(call, BaseException):
            raise call
        return call

    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(
        ray, "wait", lambda calls, num_returns=1, timeout=0: ([], calls) if calls == ["late"] else (calls, [])
    )
    monkeypatch.setattr(ray, "get", get)
    return RayMachines("local", "demo")


def test_an_answer_is_given_and_one_that_is_not_there_is_no_wait(machines: RayMachines) -> None:
    assert machines.answer((0, "")) == (0, "")
    with pytest.raises(Unanswered):
        machines.answer("late")


def test_an_actor_that_died_is_lost_in_rays_words_without_its_ids(machines: RayMachines) -> None:
    """B186: its error is not hidden, and not 200 lines."""
    error = ActorDiedError()
    error.error_msg = "The actor died.\n\tclass_name: RayKeeper\n\tpid: 12\nIts node was marked dead."
    with pytest.raises(KeeperLost) as caught:
        machines.answer(error)
    assert "class_name" not in str(caught.value)
    assert len(str(caught.value)) <= 500


def test_a_call_that_did_not_get_through_is_made_again(machines: RayMachines) -> None:
    with pytest.raises(CallLost):
        machines.answer(ActorUnavailableError("try again", b"\0" * 16))


def test_a_lost_head_is_said_with_the_next_step_before_ray_ends_the_process(
    machines: RayMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own way takes a minute, exit code 1 and a segmentation fault."""
    at_exit: list[Any] = []
    monkeypatch.setattr(module.atexit, "register", at_exit.append)
    keepers, head = [Actor(), Actor()], machines._head
    machines._actors.extend(keepers)
    assert (head.address, head.patience_s) == ("10.0.0.4:6379", 30.0)  # type: ignore[attr-defined]  # of the fake
    head.why_lost = "nobody answers there, for 30 s"  # type: ignore[misc]
    for asked in (lambda: machines.answer((0, "")), machines.lacking):
        with pytest.raises(ClusterLost, match=r"10\.0\.0\.4:6379: nobody answers.*the command with --resume") as lost:
            asked()
    assert lost.value.exit_code == 75
    machines.close()
    machines.close()
    assert [keeper.calls for keeper in keepers] == [["end"], ["end"]]
    assert at_exit[0] is module._leave


def test_a_cluster_that_neither_takes_us_in_nor_refuses_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_exit: list[Any] = []
    over = threading.Event()
    monkeypatch.setattr(module.atexit, "register", at_exit.append)
    monkeypatch.setattr(module, "CONNECT_S", 0.05)
    monkeypatch.setattr(ray, "init", lambda *_, **__: over.wait(60))
    try:
        with pytest.raises(ClusterLost, match="'local' neither took this command in nor refused") as lost:
            RayMachines("local", "demo")
        assert lost.value.exit_code == 75
        assert at_exit == [module._leave], "Ray's own way out would wait for the call"
    finally:
        over.set()


@pytest.mark.parametrize(
    ("error", "raised"), [(ConnectionError("no token"), PreflightError), (TypeError("a bug"), TypeError)]
)
def test_what_ray_says_of_us_is_said_on(
    error: Exception, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(raised, match=str(error)):
        RayMachines("local", "demo")


def test_a_bug_of_a_keeper_is_raised_as_it_is(machines: RayMachines) -> None:
    with pytest.raises(RayTaskError):
        machines.answer(RayTaskError("poll", "a trace", ValueError("a bug")))


def test_an_address_where_nobody_is_is_refused_at_once() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(PreflightError, match=rf"no Ray cluster can be used at '{address}'.*ray start --head"):
            RayMachines(address, "demo")
        listener.listen()
        assert why_unreachable(address) is None
        assert why_unreachable(f"ray://{address}") is None


@pytest.mark.parametrize("address", ["auto", "local"])
def test_a_word_is_no_address(address: str) -> None:
    assert why_unreachable(address) is None


def test_a_port_that_is_no_port_is_said() -> None:
    assert "no address" in str(why_unreachable("10.0.0.4:99999"))
