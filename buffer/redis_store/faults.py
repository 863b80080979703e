"""What an error of redis-py means: it may pass, so the call is repeated; or no repeat mends it, and what does.

Decided by the class of the error or the code that a server's answer begins with, never by the rest of its text.
"""

import ssl
from collections.abc import Iterator, Mapping

import redis

from buffer.errors import BufferError, ServerFull, ServerLost, ServerRefused

# redis-py strips the code of the answers that it has a class for.
_CODES: Mapping[type[Exception], str] = {
    redis.OutOfMemoryError: "OOM",
    redis.ReadOnlyError: "READONLY",
    redis.BusyLoadingError: "LOADING",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
}

_PASSING: Mapping[str, str] = {
    "OOM": "",
    "READONLY": "It is a replica that nobody has promoted: promote it, or point buffer.url at the primary.",
    "LOADING": "It is still reading its data; raise buffer.retry_s to wait longer.",
    "TRYAGAIN": "A slot of the cluster is being moved; raise buffer.retry_s to wait longer.",
    "CLUSTERDOWN": "Part of the cluster is down: redis-cli --cluster check.",
    "MASTERDOWN": "It has lost its primary; see the fail-over's state.",
    "MOVED": "The nodes of the cluster do not agree on its slots: redis-cli --cluster check.",
    "ASK": "A slot of the cluster is being moved; raise buffer.retry_s to wait longer.",
    "MISCONF": "It cannot write its data to disk: free space there, and see its log.",
    "NOREPLICAS": "Fewer replicas than its min-replicas-to-write are connected.",
    "UNBLOCKED": "It has become a replica; see the fail-over's state.",
    "BUSY": "Another client's script does not end: redis-cli SCRIPT KILL.",
}
"""Code -> what to do about a server that answers with it for the whole of buffer.retry_s."""

_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of TLS that a dying or restarting server causes. All others are of certificates or settings and stay."""


def code_of(error: Exception) -> str:
    """What the server's answer begins with; "" where there was no answer."""
    if type(error) in _CODES:
        return _CODES[type(error)]
    return str(error).partition(" ")[0] if isinstance(error, redis.ResponseError) else ""


def refusal(error: redis.RedisError, address: str) -> BufferError | None:
    """The error to raise at once; None if a repeat may help."""
    if isinstance(error, (redis.AuthenticationError, redis.exceptions.AuthorizationError)):
        return ServerRefused(
            f"{address} refused the password: {error}. Set user and password in buffer.url: "
            "redis://user:password@host, special characters percent-encoded."
        )
    # "ACL failure in script": a script may run, and called what its user may not.
    if isinstance(error, redis.exceptions.NoPermissionError) or code_of(error) == "ACL":
        return ServerRefused(
            f"{address} denies this user what the buffer needs: {error}. Load the ACL file that `asyncrl buffer acl` "
            "writes (buffer.acl.acl_file), or grant it: ACL SETUSER <user> ~* +@read +@write +@scripting +@transaction "
            "+@connection +info +time +cluster|slots."
        )
    if (tls := _tls_error(error)) is not None:
        return ServerRefused(
            f"{address}: TLS failed: {tls}. Name the certificate of the authority that signed the server's by "
            "?ssl_ca_certs=/path (and, where the server asks for one, a client's by ssl_certfile and ssl_keyfile); the "
            "host in buffer.url must be a name in the server's certificate; a port without TLS needs redis://."
        )
    if isinstance(error, redis.InvalidResponse):
        return ServerRefused(
            f"{address} is no Redis: what it answers is not its protocol ({error}). Check host and port."
        )
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)) or code_of(error) in _PASSING:
        return None
    return BufferError(f"{address} answered: {error}")


def given_up(error: redis.RedisError, address: str, retry_s: float) -> BufferError:
    """The error to raise when what might have passed did not."""
    code = code_of(error)
    if code == "OOM":
        return ServerFull(
            f"{address} had no memory left for buffer.retry_s = {retry_s} s: {error}. Raise its maxmemory above "
            "buffer.max_bytes + buffer.max_dead_bytes, or lower those."
        )
    if code:
        said = str(error) if str(error).startswith(code) else f"{code} {error}"
        return ServerLost(f"{address} took no work for buffer.retry_s = {retry_s} s: {said}. {_PASSING[code]}")
    return ServerLost(
        f"{address} did not answer for buffer.retry_s = {retry_s} s: {error}. Is the server running and reachable from "
        "here (its bind and protected-mode)? Does it speak TLS (rediss://) or not (redis://) as buffer.url says, and "
        "ask for a client's certificate (?ssl_certfile=)? What was acknowledged is kept; start this process again when "
        "it answers."
    )


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """What TLS itself complained about, behind redis-py's ConnectionError."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _BROKEN_OFF):
            return cause
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
