"""Who has the devices: the seam between a trainer with devices of its own and one that lends them to servers."""

from typing import Protocol


class Gpus(Protocol):
    """Moves the devices between the trainer and servers on them; when, `loans` decides.

    Two implementations: DedicatedGpus here, SharedGpus in asyncrl.inference.sharing, which lets the servers sleep and
    wake. Ranks other than 0 have nobody to ask.
    """

    async def lend(self) -> None:
        """The servers may use the devices' memory and time from now on."""
        ...

    async def recall(self) -> None:
        """Return when no server uses them any more. Raises WaitTimeout."""
        ...

    def await_serving(self, deadline_s: float) -> bool:
        """Block until a server on them serves, or so long; whether one does."""
        ...

    def num_servers(self) -> tuple[int, int]:
        """Servers that are alive, asleep or not: on them, and on other devices. Blocks."""
        ...


class DedicatedGpus:
    """The trainer has its devices to itself, or is a rank that rank 0 asks for, so there is nothing to do."""

    async def lend(self) -> None:
        """Nobody takes them."""

    async def recall(self) -> None:
        """They are here."""

    def await_serving(self, deadline_s: float) -> bool:
        """Nobody will."""
        return False

    def num_servers(self) -> tuple[int, int]:
        """None that it knows."""
        return 0, 0
