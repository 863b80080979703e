"""A server without a life on the roster: why it has none, and that its host is still there.

It stands there before another life, and while an operator wants it out. It has no address and gets no request.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from asyncrl import waits
from asyncrl.inference.stage_dir import StageDir
from weightsync.acks import State, Vitals
from weightsync.errors import WeightsyncError
from weightsync.receiver import Receiver

LISTEN_S = 2.0  # longest stay of the listening thread, which a process waits for when it ends

log = logging.getLogger(__name__)


class Absence:
    """Shows one server on the roster between its lives.

    Args:
        name: of the server, for messages.
        make_receiver: from an incarnation, an address and a stage directory; registers the incarnation.
        renew_every_s: seconds between two signs of life.
    """

    def __init__(
        self,
        name: str,
        stage: StageDir,
        make_receiver: Callable[[str, str, Path], Receiver],
        *,
        renew_every_s: float,
    ) -> None:
        self._name, self._stage, self._make_receiver = name, stage, make_receiver
        self._renew_every_s = min(LISTEN_S, renew_every_s)

    async def last(
        self,
        stop: asyncio.Event,
        state: State,
        reason: str,
        vitals: Vitals,
        *,
        over: Callable[[Receiver], bool] = lambda receiver: False,
        deadline_s: float = float("inf"),
    ) -> None:
        """Stay on the roster as `state` for `reason`, until `over` (which blocks), the deadline, or `stop`.

        Raises:
            StaleIncarnation: another host looks after a server of this name.
            LogLost: the version log does not answer.
        """
        incarnation = uuid.uuid4().hex
        stage_dir = self._stage.for_life(incarnation)
        receiver = await waits.in_thread(self._make_receiver, incarnation, "", stage_dir)
        stopping = asyncio.create_task(stop.wait())
        end_s = time.monotonic() + deadline_s
        try:
            await waits.in_thread(receiver.withdraw, state, reason)
            while not stop.is_set() and (left_s := end_s - time.monotonic()) > 0:
                await waits.in_thread(receiver.renew, vitals)
                if await waits.in_thread(over, receiver):
                    return
                listening = asyncio.ensure_future(waits.in_thread(receiver.wait, min(self._renew_every_s, left_s)))
                await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
                if listening.done():
                    listening.result()
        finally:
            stopping.cancel()
            await self._leave(receiver, incarnation)

    async def _leave(self, receiver: Receiver, incarnation: str) -> None:
        try:
            await waits.in_thread(receiver.leave)
        except WeightsyncError as error:
            log.warning("%s could not take back its word, which lapses by itself: %s", self._name, error)
        await waits.in_thread(self._stage.end_life, incarnation)
