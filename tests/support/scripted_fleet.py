"""A fleet in place of servers: it answers with texts that a test gives, and a test may hold it or have it cut."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asyncrl.inference.errors import MalformedAnswer
from asyncrl.inference.generated import Generated
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.session import Session
from buffer import Span
from tests.support.ascii_chat import END, encode

VERSION, DIGEST = (1 << 32) | 7, 99


@dataclass
class ScriptedFleet:
    """Says `script`'s texts in order, then `default`.

    Attributes:
        hold: while it is set, answers wait.
        cut_after: an answer that has more tokens is cut there once, by the activation of the next version; None: none
            is.
        error: raised in place of the next answer.
        encode, end: how a text becomes ids, and the id that ends an answer.
        asked: (tokens, sampling) of each request.
        lost_after: a watched answer is lost once so many of its tokens were shown; None: none is.
    """

    default: str = "ok"
    script: deque[str] = field(default_factory=deque)
    hold: asyncio.Event | None = None
    cut_after: int | None = None
    error: Exception | None = None
    version: int = VERSION
    encode: Callable[[str], list[int]] = encode
    end: int = END
    asked: list[tuple[list[int], Sampling]] = field(default_factory=list)
    lost_after: int | None = None
    num_cancelled: int = 0
    num_cuts: int = 0
    _rest: dict[int, list[int]] = field(default_factory=dict)

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: Sampling,
        *,
        session: Session,
        may_start_on: Callable[[int], bool],
    ) -> Generated:
        """The next text, or the rest of one that was cut or came to its most tokens."""
        assert may_start_on(self.version)
        self.asked.append((list(token_ids), sampling))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        ids = self._rest.pop(len(token_ids), None)
        if ids is None:
            ids = [*self.encode(self.script.popleft() if self.script else self.default), self.end]
        try:
            if self.hold is not None:
                await self.hold.wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        given, finish, version = ids[: sampling.max_new_tokens], "length", self.version
        if self.cut_after is not None and len(ids) > self.cut_after:
            given, finish, self.cut_after = ids[: self.cut_after], "abort", None
            self.version += 1
        elif len(given) == len(ids):
            finish = "stop"
        if session.watch is not None:
            num_cuts, every = self.num_cuts, session.watch.every
            for start in range(0, len(given), every):
                if self.lost_after is not None and start >= self.lost_after:
                    self.lost_after = None
                    raise MalformedAnswer("spans", "its last event contradicts itself")
                session.watch.show(given[start : start + every])
                await asyncio.sleep(0)
                if self.num_cuts > num_cuts:
                    given, finish = given[: start + every], "abort"
                    break
        if len(given) < len(ids):
            self._rest[len(token_ids) + len(given)] = ids[len(given) :]
        session.server = "server-0"
        logprobs = tuple(-0.25 - 0.001 * (len(token_ids) + i) for i in range(len(given)))
        return Generated(tuple(given), logprobs, finish, (Span(version, DIGEST, len(given)),), "server-0")

    async def cut(self, session: Session) -> None:
        """An answer that is watched ends with what was shown of it; others never are at a server."""
        self.num_cuts += 1
