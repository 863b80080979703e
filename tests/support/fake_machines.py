"""Machines of a cluster in this process: real keepers that start real processes, on machines that a test can end."""

import signal
from collections.abc import Sequence
from typing import Any

from asyncrl.cluster.bundles import BundleGroup
from asyncrl.cluster.keeper import Keeper
from asyncrl.cluster.machines import CallLost, KeeperLost, Unanswered


class FakeKeeper:
    """A keeper and whether it is still there."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place, self.keeper, self.is_lost = place, Keeper(), False
        self.orders: list[Any] = []


class FakeMachines:
    """Held to what RayMachines does: see asyncrl.cluster.machines.Machines."""

    def __init__(self, *, devices: int = 0, addresses: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self._addresses, self._devices = addresses, devices
        self.groups: tuple[BundleGroup, ...] = ()
        self.keepers: list[FakeKeeper] = []
        self.why: str | None = None
        self.is_silent = False
        self.loses_next_call = False
        self.is_closed = False

    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    def num_devices(self) -> int:
        return self._devices

    def reserve(self, groups: Sequence[BundleGroup]) -> None:
        self.groups = tuple(groups)

    def lacking(self) -> str | None:
        return self.why

    def address_of(self, group: str, bundle: int) -> str:
        assert any(found.name == group and bundle < found.count for found in self.groups)
        return self._addresses[0]

    def keeper(self, group: str, bundle: int) -> FakeKeeper:
        assert any(found.name == group and bundle < found.count for found in self.groups)
        self.keepers.append(FakeKeeper((group, bundle)))
        return self.keepers[-1]

    def call(self, keeper: FakeKeeper, method: str, *arguments: Any) -> tuple[FakeKeeper, str, Any, bool]:
        if method == "start":
            keeper.orders.append(arguments[0])
        lost, self.loses_next_call = self.loses_next_call, False
        answer = None if keeper.is_lost or lost or self.is_silent else getattr(keeper.keeper, method)(*arguments)
        return keeper, method, answer, lost

    def answer(self, call: tuple[FakeKeeper, str, Any, bool]) -> Any:
        keeper, _, answer, lost = call
        if keeper.is_lost:
            raise KeeperLost("its node 10.0.0.7 has died")
        if lost:
            raise CallLost
        if self.is_silent:
            raise Unanswered
        return answer

    def lose(self, keeper: FakeKeeper) -> None:
        """End a keeper's machine, with what it started."""
        keeper.is_lost = True
        for child in keeper.keeper._children.values():
            child.send(signal.SIGKILL)

    def close(self) -> None:
        self.is_closed = True
        for keeper in self.keepers:
            self.lose(keeper)
