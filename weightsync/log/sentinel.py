"""A client of the primary that Sentinels name: redis+sentinel://[user:password@]host[:port],.../service[/db][?options].

Options are sentinel_username and sentinel_password; rediss+sentinel:// speaks TLS to both, with redis-py's ssl_*
options. The form is that of buffer.url, so that one address serves both bridges.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

import redis
from redis.sentinel import Sentinel

from weightsync.errors import LogLost

SCHEMES = ("redis+sentinel", "rediss+sentinel")
_PORT = 26379


def primary_of(url: str, settings: Mapping[str, Any]) -> "redis.Redis":
    """A client whose connections ask the Sentinels first, so that a fail-over is one reconnect.

    Args:
        settings: of each connection, retries included.
    Raises:
        LogLost: the URL names no host or no service.
    """
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    account, _, place = rest.rpartition("@")
    listed, _, tail = place.partition("/")
    service, _, db = tail.partition("/")
    if not listed or not service:
        raise LogLost(f"{scheme}://: expected hosts and the name of a service, {scheme}://host,host/service.")
    options = dict(parse_qsl(query))
    user, _, password = account.partition(":")
    login: dict[str, Any] = {name: unquote(text) for name, text in (("username", user), ("password", password)) if text}
    of_sentinels: dict[str, Any] = {
        name: options.pop(f"sentinel_{name}") for name in ("username", "password") if f"sentinel_{name}" in options
    }
    common: dict[str, Any] = {**settings, **options, **({"ssl": True} if scheme == "rediss+sentinel" else {})}
    # Sentinels answer at once or are down: the next one is asked soon.
    asked = {**common, **of_sentinels, "socket_timeout": 2.0, "socket_connect_timeout": 2.0}
    # redis-py has no types for these two.
    sentinels: Any = Sentinel([_host(one) for one in listed.split(",")], sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    client: redis.Redis = sentinels.master_for(unquote(service), **{**common, **login, "db": int(db or 0)})
    return client


def _host(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORT)
    return unquote(host.removeprefix("[").removesuffix("]")), int(port)
