"""What a host looks after: a server that it starts itself, or one that somebody else runs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from asyncrl import waits
from asyncrl.cluster.ports import ReservedPort
from asyncrl.inference.adoption import NotAdoptable, require_adoptable
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import ServerUnavailable
from asyncrl.inference.launcher import LaunchSpec, command
from asyncrl.inference.server_process import ServerProcess


class ManagedServer(Protocol):
    """A server with lives: each begins with `begin` and ends with `end`. StartedServer, AdoptedServer."""

    name: str

    def url(self) -> str:
        """Where the next life will answer."""
        ...

    async def begin(self, url: str, stage_dir: Path, client: ServerClient) -> None:
        """Return when the server answers. Raises ServerUnavailable."""
        ...

    async def ended(self) -> int:
        """Wait until this life is over by itself; its exit code."""
        ...

    async def end(self) -> None:
        """End this life if it goes on. Repeating is harmless."""
        ...


class StartedServer:
    """A process of this machine, started anew for each life.

    Args:
        name: for logs and acks.
        engine: row of launcher.ENGINES.
        make_spec: gives the spec of a life from its port and stage directory.
        reserve_port: gives a port of `host` that nobody else is given until the server listens on it.
        host: address to listen on.
        log: file that every life's output is appended to.
    """

    def __init__(
        self,
        name: str,
        *,
        engine: str,
        make_spec: Callable[[int, Path], LaunchSpec],
        reserve_port: Callable[[], ReservedPort],
        host: str,
        log: Path,
        start_timeout_s: float,
        stop_timeout_s: float = 20.0,
    ) -> None:
        self.name = name
        self._engine, self._make_spec, self._reserve_port, self._host = engine, make_spec, reserve_port, host
        self._log, self._start_timeout_s, self._stop_timeout_s = log, start_timeout_s, stop_timeout_s
        self._process: ServerProcess | None = None
        self._port: ReservedPort | None = None

    def url(self) -> str:
        """An address with a port that is its own from now on."""
        self._let_port_go()
        self._port = self._reserve_port()
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port.number}"

    async def begin(self, url: str, stage_dir: Path, client: ServerClient) -> None:
        """Start the process and wait for its first answer."""
        spec = self._make_spec(int(url.rpartition(":")[2]), stage_dir)
        self._process = ServerProcess(
            self.name, command(self._engine, spec), self._log, stop_timeout_s=self._stop_timeout_s
        )
        await self._process.start(client.model_info, self._start_timeout_s)
        self._let_port_go()

    async def ended(self) -> int:
        """Wait for the process to end."""
        assert self._process is not None, "the server was not started"
        return await self._process.ended()

    async def end(self) -> None:
        """Stop the process, children included."""
        self._let_port_go()
        if self._process is not None:
            await self._process.stop()
            self._process = None

    def _let_port_go(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None


class AdoptedServer:
    """A server that somebody else runs, by its address. It must have been started with our weight loader and with its
    stage directory on this machine; see `adoption`.

    Args:
        wait_s: that it may take to answer.
        num_ranks, record_experts, keeps_kv: what it must have been started with.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        wait_s: float,
        num_ranks: int = 1,
        record_experts: bool = False,
        keeps_kv: bool = False,
    ) -> None:
        self.name, self._url, self._wait_s = name, url, wait_s
        self._num_ranks, self._record_experts, self._keeps_kv = num_ranks, record_experts, keeps_kv

    def url(self) -> str:
        """Its address."""
        return self._url

    async def begin(self, url: str, stage_dir: Path, client: ServerClient) -> None:
        """Wait until it answers, and check that it can take our weights. Raises NotAdoptable."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            try:
                await client.model_info()
                break
            except ServerUnavailable as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise NotAdoptable(
                        f"{self.name}: nobody answers at {url} for {self._wait_s:g} s ({error}). Start the server, or "
                        "take the address out of inference.urls, or `asyncrl fleet remove` it if it was added."
                    ) from error
            await waits.pause("host waits for its server to answer", 1.0)
        await require_adoptable(
            client,
            num_ranks=self._num_ranks,
            record_experts=self._record_experts,
            keeps_kv=self._keeps_kv,
            stage_dir=stage_dir,
        )

    async def ended(self) -> int:
        """Nobody tells us: the host's probe finds out."""
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def end(self) -> None:
        """It is not ours to stop."""
