"""Which servers may be given requests."""

from weightsync.acks import Ack, State, held_versions, serving


def ack(version: int, state: State = "serving") -> Ack:
    return Ack(version, 1, "start", state, "http://s", 0.0)


def test_only_serving_servers_are_given_requests() -> None:
    acks = {"a": ack(5), "b": ack(5, "updating"), "c": ack(5, "asleep"), "d": ack(5, "failed")}
    assert set(serving(acks, [5])) == {"a"}


def test_a_server_too_many_versions_behind_head_is_out_of_rotation() -> None:
    acks = {"head": ack(9), "one": ack(8), "two": ack(7)}
    versions = [3, 7, 8, 9]
    assert set(serving(acks, versions, None)) == {"head", "one", "two"}
    assert set(serving(acks, versions, 1)) == {"head", "one"}
    assert set(serving(acks, versions, 0)) == {"head"}


def test_pruning_sees_every_version_that_a_server_acknowledged() -> None:
    assert held_versions({"a": ack(9), "b": ack(7, "updating")}) == {7, 9}
