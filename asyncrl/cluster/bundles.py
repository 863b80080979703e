"""Which resources each process asks a cluster for, and which processes share a machine: arithmetic over counts."""

from dataclasses import dataclass
from typing import Literal

from asyncrl.cluster.base import Seat, Wanted

WORKER_CPUS = 1


@dataclass(frozen=True)
class Bundle:
    """Resources of one machine that are given out together."""

    cpus: int
    devices: int

    def __str__(self) -> str:
        return f"{{CPU: {self.cpus}, GPU: {self.devices}}}" if self.devices else f"{{CPU: {self.cpus}}}"


@dataclass(frozen=True)
class BundleGroup:
    """Equal bundles that are placed together.

    Attributes:
        strategy: PACK: on as few machines as there is room on; SPREAD: on as many. A strict form would do the same
            while all goes well, and leave a bundle without a place when its machine dies and no other fits alone.
    """

    name: str
    strategy: Literal["PACK", "SPREAD"]
    bundle: Bundle
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.bundle} for {self.name}"


@dataclass(frozen=True)
class Spot:
    """A process's part of a bundle: of the devices in it, `num_devices` from `first_device` on."""

    group: str
    bundle: int
    first_device: int
    num_devices: int


@dataclass(frozen=True)
class Plan:
    """What the wanted processes ask for.

    Attributes:
        threads: CPUs of a rank or a server.
        on_devices: whether servers get devices, and ranks unless `ranks_on_cpu`.
    """

    wanted: Wanted
    threads: int
    on_devices: bool
    ranks_on_cpu: bool = False

    @property
    def rank_devices(self) -> int:
        """Devices of a rank."""
        return int(self.on_devices and not self.ranks_on_cpu)

    @property
    def server_devices(self) -> int:
        """Devices of a server."""
        return self.wanted.tp if self.on_devices else 0

    def groups(self) -> tuple[BundleGroup, ...]:
        """The bundles to reserve; groups without a bundle are left out."""
        wanted = self.wanted
        if wanted.shares_devices:
            # A server and the ranks whose devices it uses are in one bundle, so that whoever has it can hand them on.
            count = max(-(-wanted.ranks // wanted.tp), wanted.servers)
            cpus = self.threads * (wanted.tp + 1)
            groups = [BundleGroup("ranks and servers", "PACK", Bundle(cpus, self.server_devices), count)]
        else:
            groups = [
                BundleGroup("ranks", "PACK", Bundle(self.threads, self.rank_devices), wanted.ranks),
                BundleGroup("servers", "PACK", Bundle(self.threads, self.server_devices), wanted.servers),
            ]
        groups.append(BundleGroup("workers", "SPREAD", Bundle(WORKER_CPUS, 0), wanted.workers))
        return tuple(group for group in groups if group.count)

    def spot(self, seat: Seat) -> Spot:
        """Where in them a process is."""
        shares = self.wanted.shares_devices
        match seat.kind:
            case "workers":
                return Spot("workers", seat.index, 0, 0)
            case "servers":
                return Spot("ranks and servers" if shares else "servers", seat.index, 0, self.server_devices)
            case "ranks" if shares:
                bundle, first = divmod(seat.index, self.wanted.tp)
                return Spot("ranks and servers", bundle, first if self.rank_devices else 0, self.rank_devices)
            case "ranks":
                return Spot("ranks", seat.index, 0, self.rank_devices)
