"""The machines of a cluster as a supervisor sees them: bundles that are reserved on them, and keepers in those."""

from collections.abc import Sequence
from typing import Any, Protocol

from asyncrl.cluster.bundles import BundleGroup


class KeeperLost(Exception):
    """A keeper ended, or its machine did; the message says what is known. What it started is gone with it."""


class Unanswered(Exception):
    """There is no answer yet."""


class CallLost(Unanswered):
    """Nor will there be one to this call; the keeper may still be there, so it is made again."""


class Machines(Protocol):
    """Machines of which parts are reserved and used through keepers. RayMachines. No method blocks for long.

    A keeper and a call are whatever the implementation makes of them.
    """

    def addresses(self) -> tuple[str, ...]:
        """Of the living machines, each once."""
        ...

    def num_devices(self) -> int:
        """Accelerators of all living machines."""
        ...

    def reserve(self, groups: Sequence[BundleGroup]) -> None:
        """Ask for these bundles, in place of those asked for before."""
        ...

    def lacking(self) -> str | None:
        """Why not every bundle has its place on a living machine, in words; None if every one has."""
        ...

    def address_of(self, group: str, bundle: int) -> str:
        """Address of the machine that a placed bundle is on."""
        ...

    def keeper(self, group: str, bundle: int) -> Any:  # Any: the implementation's
        """A new keeper in a bundle; it comes up when the bundle has its place."""
        ...

    def call(self, keeper: Any, method: str, *arguments: Any) -> Any:
        """Call a method of a keeper; calls arrive in their order."""
        ...

    def answer(self, call: Any) -> Any:
        """What a call returned.

        Raises:
            Unanswered, CallLost, KeeperLost: see there.
        """
        ...

    def close(self) -> None:
        """End every keeper, with what it started, and give back what was reserved. Repeating is harmless."""
        ...
