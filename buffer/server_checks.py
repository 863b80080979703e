"""What a server must be to keep a run's groups, judged by its answers to INFO."""

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from buffer.errors import ServerRefused

MIN_REDIS = (7, 0)


def check_info(address: str, info: Mapping[str, object]) -> None:
    """Refuse a server that would lose groups.

    Args:
        address: of the server, without a password.
        info: its answer to INFO: sections server, memory, replication and cluster.
    Raises:
        ServerRefused: too old, evicting, a replica or a node of a cluster; says how to change it.
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
    if str(info.get("cluster_enabled", 0)) not in ("0", "False"):
        raise ServerRefused(
            f"{address} is a node of a Redis Cluster, which needs a client that follows redirections. Set buffer.url "
            "to a "
            "single server."
        )


def masked(url: str) -> str:
    """The URL with its password replaced by ***, for messages."""
    parts = urlsplit(url)
    if parts.password is not None:
        user, host = parts.netloc.rpartition("@")[::2]
        parts = parts._replace(netloc=f"{user.partition(':')[0]}:***@{host}")
    query = "&".join(
        "password=***" if item.startswith("password=") else item for item in parts.query.split("&") if item
    )
    shown = urlunsplit(parts._replace(query=query))
    # urlunsplit drops the empty host of unix:///path.
    return shown if "://" in shown or "://" not in url else shown.replace(":", "://", 1)
