"""What an error of redis-py means to a caller."""

import ssl

import pytest
import redis

from buffer import BufferError, ServerFull, ServerLost, ServerRefused
from buffer.redis_store.faults import given_up, refusal

ADDRESS = "redis://host"


def caused_by(cause: Exception) -> redis.ConnectionError:
    """As redis-py raises what it found while it connected or read."""
    error = redis.ConnectionError(f"Error 1 connecting to host:6379. {cause}")
    error.__context__ = cause
    return error


def tls(reason: str) -> ssl.SSLError:
    return ssl.SSLError(1, f"[SSL: {reason}] {reason.lower()} (_ssl.c:1)")


PASSING = {
    "no connection": (redis.ConnectionError("refused"), ServerLost, "did not answer .*running"),
    "no answer": (redis.TimeoutError("late"), ServerLost, "did not answer"),
    "full": (redis.OutOfMemoryError("command not allowed"), ServerFull, r"maxmemory above buffer\.max_bytes"),
    "a replica": (redis.ReadOnlyError("You can't write"), ServerLost, "READONLY You can't write.*promote it"),
    "loading": (redis.BusyLoadingError("Redis is loading"), ServerLost, "LOADING.*raise buffer.retry_s"),
    "a slot that moves": (redis.exceptions.TryAgainError("Multiple keys"), ServerLost, "TRYAGAIN.*being moved"),
    "a cluster that is down": (redis.exceptions.ClusterDownError("Hash slot"), ServerLost, "--cluster check"),
    "nodes that disagree": (redis.exceptions.MovedError("7 host:1"), ServerLost, "do not agree on its slots"),
    "a disk": (redis.ResponseError("MISCONF Errors writing to the AOF"), ServerLost, "MISCONF Errors.*free space"),
    "replicas": (redis.ResponseError("NOREPLICAS Not enough good"), ServerLost, "min-replicas-to-write"),
    "a block that was ended": (redis.ResponseError("UNBLOCKED force unblock"), ServerLost, "has become a replica"),
    "somebody's script": (redis.ResponseError("BUSY Redis is busy"), ServerLost, "SCRIPT KILL"),
    "TLS that was cut off": (caused_by(ssl.SSLEOFError(8, "EOF occurred")), ServerLost, "did not answer"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_repeated_and_told_with_what_to_do_when_it_does_not(name: str) -> None:
    error, kind, message = PASSING[name]
    assert refusal(error, ADDRESS) is None
    found = given_up(error, ADDRESS, 3)
    assert type(found) is kind
    with pytest.raises(kind, match=rf"redis://host .*buffer\.retry_s = 3 s.*{message}|{message}"):
        raise found


REFUSED = {
    "a password": (redis.AuthenticationError("invalid username-password pair"), "refused the password"),
    "permissions": (redis.exceptions.NoPermissionError("can't run 'put'"), "asyncrl buffer acl.*ACL SETUSER <user>"),
    "an authority": (
        caused_by(ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")),
        r"TLS failed: \[SSL: CERTIFICATE_VERIFY_FAILED\] self-signed.*ssl_ca_certs",
    ),
    "no certificate": (caused_by(tls("TLSV13_ALERT_CERTIFICATE_REQUIRED")), "client's by ssl_certfile"),
    "a port without TLS": (caused_by(tls("WRONG_VERSION_NUMBER")), "a port without TLS needs redis://"),
    "no Redis": (redis.InvalidResponse("Protocol Error: b'H'"), "is no Redis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_repeat_mends_is_refused_at_once_with_the_fix(name: str) -> None:
    error, message = REFUSED[name]
    found = refusal(error, ADDRESS)
    assert type(found) is ServerRefused
    with pytest.raises(ServerRefused, match=message):
        raise found


def test_any_other_answer_is_an_error_of_the_buffer_that_quotes_it() -> None:
    found = refusal(redis.ResponseError("WRONGTYPE Operation against a key"), ADDRESS)
    assert type(found) is BufferError
    assert str(found) == "redis://host answered: WRONGTYPE Operation against a key"
    assert type(refusal(redis.ResponseError("BUSYKEY Target key name already exists."), ADDRESS)) is BufferError
