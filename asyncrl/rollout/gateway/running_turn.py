"""A turn that is being sampled, for everybody who waits for it: the last one that leaves cancels it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine

from asyncrl.rollout.gateway.conversation import ProtocolError, TurnAnswer, TurnDelta

Sample = Callable[[Callable[[TurnDelta], None]], Coroutine[None, None, TurnAnswer]]


class RunningTurn:
    """One turn in a task of its own. Who waits for it joins it before, and leaves it afterwards.

    Args:
        sample: samples it; is given what takes the pieces of the answer.
    """

    def __init__(self, sample: Sample) -> None:
        self._pieces: list[TurnDelta] = []
        self._changed: list[asyncio.Future[None]] = []
        self._num_joined, self._is_given_up = 0, False
        self.task = asyncio.create_task(sample(self._show))
        self.task.add_done_callback(self._ended)

    @property
    def is_usable(self) -> bool:
        """Whether it has an answer or will have one."""
        return not self._is_given_up and not (self.task.done() and (self.task.cancelled() or self.task.exception()))

    def join(self) -> None:
        """Wait for it from now on."""
        self._num_joined += 1

    def leave(self) -> None:
        """Wait no more. A turn that nobody waits for is given up."""
        self._num_joined -= 1
        if not self._num_joined and not self.task.done():
            self.give_up()

    def give_up(self) -> None:
        """Cancel it; whoever waits for it is told that its session has ended."""
        self._is_given_up = True
        self.task.cancel()

    async def answer(self) -> TurnAnswer:
        """The whole answer. Raises what sampling raised."""
        await asyncio.wait((self.task,))
        return self.result()

    def result(self) -> TurnAnswer:
        """The answer of a turn that is done. Raises what sampling raised."""
        if self.task.cancelled():
            raise ProtocolError(409, "conflict", "The turn was given up: its session has ended.")
        return self.task.result()

    async def begun(self) -> None:
        """Wait for a piece with something to show. Raises what sampling raised instead."""
        while len(self._pieces) < 2 and not self.task.done():  # the first one only names the answer
            await self._change()
        if self.task.done():
            self.result()

    async def pieces(self) -> AsyncIterator[TurnDelta]:
        """The pieces from the first one on, the last of which has the answer. Raises what sampling raised."""
        next_piece = 0
        while True:
            while next_piece < len(self._pieces):
                yield self._pieces[next_piece]
                next_piece += 1
            if self.task.done():
                break
            await self._change()
        yield TurnDelta(answer=self.result())

    async def _change(self) -> None:
        changed = asyncio.get_running_loop().create_future()
        self._changed.append(changed)
        await changed

    def _show(self, piece: TurnDelta) -> None:
        self._pieces.append(piece)
        self._wake()

    def _ended(self, task: "asyncio.Task[TurnAnswer]") -> None:
        if not task.cancelled():
            task.exception()  # looked at here, in case that nobody waits any more
        self._wake()

    def _wake(self) -> None:
        for changed in self._changed:
            if not changed.done():
                changed.set_result(None)
        self._changed.clear()
