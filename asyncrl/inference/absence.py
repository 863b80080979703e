"""A server without a life on the roster: why it has none, and that its host is still there.

It stands there before another life, and while an operator wants it out. It has no address and gets no request.
"""

import asyncio
import time
import uuid
from collections.abc import Callable

from asyncrl import waits
from asyncrl.inference.presence import Presence
from asyncrl.inference.stage_dir import StageDir
from weightsync.acks import State, Vitals
from weightsync.receiver import Receiver

LISTEN_S = 2.0  # longest stay of the listening thread, which a process waits for when it ends


class Absence:
    """Shows one server on the roster between its lives.

    Args:
        presence: of the server on the roster.
        renew_every_s: seconds between two signs of life.
    """

    def __init__(self, presence: Presence, stage: StageDir, *, renew_every_s: float) -> None:
        self._presence, self._stage = presence, stage
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

        Its word stays until the next life voids it, or the host's end takes it back.

        Raises:
            StaleIncarnation: another host looks after a server of this name.
            LogLost: the version log does not answer.
        """
        incarnation = uuid.uuid4().hex
        stage_dir = self._stage.for_life(incarnation)
        receiver = await self._presence.begin(incarnation, "", stage_dir)
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
            await self._presence.close()
            await waits.in_thread(self._stage.end_life, incarnation)
