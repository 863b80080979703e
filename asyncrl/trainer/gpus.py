"""Who has the devices: the seam between a trainer with devices of its own and one that shares them with servers."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol


class Gpus(Protocol):
    """Gives the devices to the trainer for a while.

    Two implementations: DedicatedGpus here, SharedGpus in asyncrl.inference.sharing, which lets the servers sleep
    meanwhile.
    """

    def for_training(self) -> AbstractAsyncContextManager[None]:
        """The block may use the devices' memory and time."""
        ...


class DedicatedGpus:
    """The trainer has devices of its own, so there is nothing to ask for."""

    @asynccontextmanager
    async def for_training(self) -> AsyncIterator[None]:
        """Enter at once."""
        yield
