"""Check of the Redis that holds the run's ledger: the user's, or the embedded one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import buffer
from asyncrl.config import Config
from asyncrl.doctor.finding import Finding
from asyncrl.load_config import REDIS_URL_VARIABLE
from asyncrl.load_config.secrets import MASK, masked
from buffer.errors import BufferError

RETRY_S = 3.0  # a person waits for the answer; a run retries longer


def check_redis(config: Config) -> Iterator[Finding]:
    """Connect as a run would: version, eviction, permissions and password are checked by the buffer."""
    url = redis_url(config)
    settings = config.buffer.model_copy(update={"retry_s": min(RETRY_S, config.buffer.retry_s)})
    name = "Redis" if url else "embedded Redis"
    try:
        with _given_or_embedded(url) as address:
            buffer.ReplayBuffer.connect(address, config.run.name, settings, config.staleness).close()
    except (BufferError, OSError, ValueError) as error:
        text = without_password(str(error), url)
        fix = (
            "The message says what to change." if url else f"Set buffer.url or {REDIS_URL_VARIABLE} to a Redis you run."
        )
        yield Finding(name, False, text, fix)
    else:
        yield Finding(name, True, f"{masked(url)} answers and may be used" if url else "starts and may be used")


@contextmanager
def _given_or_embedded(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with (
        tempfile.TemporaryDirectory(prefix="asyncrl-doctor-") as directory,
        closing(buffer.ensure(Path(directory) / "redis")) as server,
    ):
        yield server.url


def redis_url(config: Config) -> str | None:
    """The address that a run would use, with its password; None for the embedded server."""
    url = config.buffer.url
    if url is None:
        return os.environ.get(REDIS_URL_VARIABLE) or None
    return url.get_secret_value()


def without_password(text: str, url: str | None) -> str:
    """A message that may quote the address, with its password masked."""
    if url is None:
        return text
    text = text.replace(url, masked(url))
    try:
        password = urlsplit(url).password
    except ValueError:  # an address that cannot be taken apart has no password that could be found in a text
        return text
    for secret in {password, unquote(password or "")}:
        text = text.replace(secret, MASK) if secret else text
    return text
