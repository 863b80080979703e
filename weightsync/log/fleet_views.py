"""What is read of a run's servers, wherever they are kept: living ones, all, and acks; and forgetting a lost one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from weightsync.acks import Ack, Server, ack_of


class FleetViews(ABC):
    """The reading half of RedisFleet and DirectoryFleet."""

    @abstractmethod
    def leave(self, server: str, incarnation: str) -> None: ...

    @abstractmethod
    def _fleet(self) -> dict[str, tuple[Server, tuple[int, int] | None]]:
        """Every registration, with the version and digest that it holds, read at one moment."""

    def forget(self, server: str) -> None:
        held = self.roster().get(server)
        if held is not None and not held.alive:
            self.leave(server, held.incarnation)

    def servers(self) -> Mapping[str, Server]:
        return {name: server for name, server in self.roster().items() if server.alive}

    def roster(self) -> dict[str, Server]:
        return {name: server for name, (server, _) in self._fleet().items() if not server.forgotten}

    def acks(self) -> dict[str, Ack]:
        return {
            name: ack_of(server, *held)
            for name, (server, held) in self._fleet().items()
            if held is not None and server.alive
        }
