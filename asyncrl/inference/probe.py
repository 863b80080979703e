"""Whether a server still answers, holds what its host gave it, and how much it has to do."""

from collections.abc import Callable
from dataclasses import replace

from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerUnavailable
from weightsync.acks import Vitals


class AnotherLife(ServerUnavailable):
    """The server's weights are not those that its host gave it: somebody started it again, or changed it."""


class Probe:
    """Asks one server again and again. `begin` a life, then `look`.

    Args:
        deadline_s: seconds an answer may take.
        max_failures: in a row, before the server counts as hanging.
    """

    def __init__(self, name: str, deadline_s: float, max_failures: int) -> None:
        self._name, self._deadline_s, self._max_failures = name, deadline_s, max_failures
        self._num_failures = 0

    def begin(self) -> None:
        """Failures of the life before do not count."""
        self._num_failures = 0

    async def look(self, client: ServerClient, stamped: Callable[[], str], vitals: Vitals) -> Vitals | None:
        """`vitals` with the server's load; None: it did not answer this time.

        Args:
            stamped: label of the version that the host stamped and the server serves; empty while that changes.
        Raises:
            AnotherLife: it serves another version than was stamped.
            ServerUnavailable: it did not answer several times in a row.
        """
        before = stamped()
        try:
            info = await client.model_info(self._deadline_s)  # /health would hang while it is paused
            # The engine itself, which may hang while HTTP goes on. Not while it is paused or loads.
            vitals = await self._loads(client, vitals) if before else vitals
        except ServerUnavailable as error:
            if before != stamped():
                return None  # an update came between; it has a deadline of its own
            self._num_failures += 1
            if self._num_failures >= self._max_failures:
                raise ServerUnavailable(f"{self._num_failures} probes in a row failed: {error}") from error
            return None
        self._num_failures = 0
        if before and before == stamped() and info.weight_version != before:
            raise AnotherLife(
                f"{self._name} serves version {info.weight_version!r}, and its host had given it {before}: somebody "
                "started it again, or changed its weights. It leaves rotation until it holds head."
            )
        return vitals

    async def _loads(self, client: ServerClient, vitals: Vitals) -> Vitals:
        try:
            loads = await client.loads(self._deadline_s)
        except (RequestRefused, MalformedAnswer):
            return vitals  # a server that does not say
        return replace(vitals, num_running=loads.num_running, num_waiting=loads.num_waiting)
