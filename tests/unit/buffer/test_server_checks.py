"""What the server's answers to INFO mean, and how its address is shown."""

import pytest

from buffer import ServerRefused
from buffer.server_checks import check_info, masked

GOOD = {"redis_version": "7.0.15", "maxmemory_policy": "noeviction", "role": "master", "cluster_enabled": 0}


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
        ({"cluster_enabled": 1}, "Redis Cluster"),
    ],
)
def test_a_server_that_would_lose_groups_is_refused_with_the_fix(change: dict[str, object], message: str) -> None:
    with pytest.raises(ServerRefused, match=message):
        check_info("redis://host", {**GOOD, **change})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:p%40ss%3Aw%2Frd@host:6380", "redis://user:***@host:6380"),
        ("rediss://:secret@host", "rediss://:***@host"),
        ("unix://:secret@/tmp/redis.sock", "unix://:***@/tmp/redis.sock"),
        ("unix:///tmp/redis.sock?db=1&password=secret", "unix:///tmp/redis.sock?db=1&password=***"),
    ],
)
def test_the_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masked(url) == shown
