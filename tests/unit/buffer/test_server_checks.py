"""What the server's answers to INFO mean."""

import pytest

from buffer import ServerRefused
from buffer.server_checks import check_info, parse_info

GOOD = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "role": "master"}


@pytest.mark.parametrize("version", ["7.0.0", "7.2.4", "8.2.3", "10.0"])
def test_a_server_that_is_new_enough_is_taken(version: str) -> None:
    check_info("redis://host", {**GOOD, "redis_version": version})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"redis_version": "6.2.14"}, r"is Redis 6\.2\.14; asyncrl needs Redis >= 7\.0 or Valkey"),
        ({"maxmemory_policy": "allkeys-lru"}, "CONFIG SET maxmemory-policy noeviction"),
        ({"maxmemory_policy": "volatile-ttl"}, "noeviction"),
        ({"role": "slave", "master_host": "h", "master_port": 6379}, "is a replica of h:6379"),
    ],
)
def test_a_server_that_would_lose_groups_is_refused_with_the_fix(change: dict[str, object], message: str) -> None:
    with pytest.raises(ServerRefused, match=message):
        check_info("redis://host", {**GOOD, **change})


def test_an_answer_to_info_is_read_as_it_was_sent() -> None:
    text = b"# Server\r\nredis_version:7.2.4\r\n\r\n# Replication\r\nrole:master\r\nslave0:ip=::1,port=1\r\n"
    assert parse_info(text) == {"redis_version": "7.2.4", "role": "master", "slave0": "ip=::1,port=1"}


def test_a_node_of_a_cluster_is_judged_like_any_other_server() -> None:
    check_info("redis://host", {**GOOD, "cluster_enabled": "1"})
