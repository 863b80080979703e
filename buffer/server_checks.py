"""What a server must be to keep a run's groups, judged by its answers to INFO."""

from collections.abc import Mapping

from buffer.errors import ServerRefused

MIN_REDIS = (7, 0)

PROBE_KEY = "asyncrl:probe"
"""Named by the script that a connection tries first, and never written."""


def check_info(address: str, info: Mapping[str, object]) -> None:
    """Refuse a server that would lose groups.

    Args:
        address: of the server, without a password.
        info: its answer to INFO: sections server, memory and replication.
    Raises:
        ServerRefused: too old, evicting, or a replica; says how to change it.
    """
    # Valkey calls itself redis_version 7.2.4, whatever its own version is.
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < MIN_REDIS:
        raise ServerRefused(
            f"{address} is Redis {version}; asyncrl needs Redis >= 7.0 or Valkey, for scripts with flags. Upgrade "
            "the server, or "
            "leave buffer.url empty to use the one that asyncrl brings."
        )
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        raise ServerRefused(
            f"{address} has maxmemory-policy {policy}: when its memory is full it would delete groups and parts of "
            "the ledger "
            "without a word. Set it: redis-cli CONFIG SET maxmemory-policy noeviction (and in redis.conf, to keep it)."
        )
    if str(info.get("role", "master")) != "master":
        raise ServerRefused(
            f"{address} is a replica of {info.get('master_host')}:{info.get('master_port')} and takes no writes. Set "
            "buffer.url to the primary."
        )


def parse_info(text: bytes) -> dict[str, str]:
    """An answer to INFO as a mapping."""
    lines = text.decode().splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
