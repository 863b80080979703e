"""The door to Redis for log and parts: a client with its retries, and Redis's errors as ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from weightsync.errors import LogLost, TransportFull, TransportLost
from weightsync.log.sentinel import SCHEMES, primary_of

_SOCKET_S = 15.0
_RETRIES, _FAILOVER_RETRIES = 8, 30


def connect(url: str) -> "redis.Redis":
    """A thread-safe client, retries included: the only place where weightsync sets them.

    Eight retries over about six seconds span a restart of the server, thirty over half a minute a fail-over. Repeating
    is safe because every call is idempotent: scripts recognise a repeat by its nonce, parts are written once under keys
    that nobody else uses.
    """
    settings: dict[str, Any] = {
        "retry": Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), retries=_RETRIES),
        "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
        "socket_timeout": _SOCKET_S,
        "socket_connect_timeout": 5.0,
        "health_check_interval": 30,
        "protocol": 2,
    }
    if url.partition("://")[0] in SCHEMES:
        settings["retry"] = Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), retries=_FAILOVER_RETRIES)
        return primary_of(url, settings)
    client: redis.Redis = redis.Redis.from_url(url, **settings)
    return client


@contextmanager
def answers(what: str, lost: type[LogLost] | type[TransportLost] = LogLost) -> Iterator[None]:
    """Turn redis-py's errors into ours.

    Raises:
        LogLost, TransportLost: no answer within the retries, or the server refused the login.
        TransportFull: the server has no memory left.
    """
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise TransportFull(
            f"Redis has no memory left for {what}: {error}. Raise its maxmemory, lower weightsync.keep_deltas and "
            "weightsync.anchor_interval, or move parts by weightsync.directory."
        ) from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise lost(
            f"Redis did not answer {what}: {error}. Nothing was decided here; the call may be repeated. Check that the "
            "server runs and that address and password are right."
        ) from error
