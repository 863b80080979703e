"""Many harnesses at once, open loop: a request is sent when its time has come, whatever became of those before it.

Each harness keeps one connection and one conversation; or a client of the engine does, without a gateway between. Its
messages carry its own mark behind a sign, which the fast engine repeats; so an answer of another session, or of another
turn, is seen at once. Times count from when a request was due, not from when it could be sent.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SIGN = "#"
OBSERVATION = "The tool says: " + "all is well so far, and there is more to do. " * 6
"""Every turn adds some two hundred tokens to its conversation."""
HEAD = "POST {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"


@dataclass(frozen=True)
class Load:
    """How much is asked for.

    Attributes:
        per_s: requests a second over all sessions.
        duration_s: how long they come.
        poisson: gaps between them are exponential; else they are all equal.
    """

    per_s: float
    duration_s: float
    seed: int = 0
    poisson: bool = True

    def due_s(self) -> list[float]:
        """When each request is due."""
        source, now, due = random.Random(self.seed), 0.0, []
        while now < self.duration_s:
            due.append(now)
            now += source.expovariate(self.per_s) if self.poisson else 1 / self.per_s
        return due


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        answered: seconds from due to answered, and sampled tokens, of each request.
        num_mixed_up: answers that were another session's, or another turn's.
        num_skipped: requests for which no session was idle.
        max_late_s: how late a request was sent: the generator itself could not keep up.
    """

    answered: list[tuple[float, int]] = field(default_factory=list)
    num_mixed_up: int = 0
    num_skipped: int = 0
    max_late_s: float = 0.0

    def overheads_s(self, tokens_per_s: float) -> list[float]:
        """Seconds of each request beyond those that its tokens take at an engine's speed."""
        return [seconds - tokens / tokens_per_s for seconds, tokens in self.answered]


class Harness:
    """One online session's client: a connection, a conversation. Its mark is the session's name."""

    def __init__(self, port: int, key: str, mark: str) -> None:
        self._port, self._key, self.mark = port, key, mark
        self.messages: list[dict[str, Any]] = []
        self.num_turns = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def said(self, turn: int) -> str:
        """What the engine is made to answer in a turn: no other session's, and no other turn's."""
        return f"{self.mark}.{turn} goes on with this"

    def answers(self) -> list[str]:
        """All of them, in order."""
        return [self.said(turn) for turn in range(self.num_turns)]

    async def turn(self, outcome: Outcome) -> int:
        """Ask once more, and go on with what is answered; how many tokens that were."""
        said = self.said(self.num_turns)
        asked = [*self.messages, {"role": "user", "content": f"{OBSERVATION}{SIGN}{said}"}]
        status, body = await self.post(f"/s/{self.mark}/v1/chat/completions", {"model": "policy", "messages": asked})
        if status != 200:
            raise RuntimeError(f"{self.mark}: status {status}: {body}")
        answer = body["choices"][0]["message"]["content"]
        outcome.num_mixed_up += answer != said
        self.messages = [*asked, {"role": "assistant", "content": answer}]
        self.num_turns += 1
        return int(body["usage"]["completion_tokens"])

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """One request; the connection is kept."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = HEAD.format(path=path, host=f"127.0.0.1:{self._port}", key=self._key)
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()
            self._streams = None


class EngineClient(Harness):
    """A conversation of as many ids at the engine itself: what a harness's turn takes without a gateway.

    Args:
        asked, answer: ids of every turn's question, its sign the last of them, and of every answer.
        stop_id: ends both.
    """

    def __init__(self, port: int, mark: str, asked: Sequence[int], answer: Sequence[int], stop_id: int) -> None:
        super().__init__(port, "", mark)
        self._asked, self._answer, self._stop_id = list(asked), list(answer), stop_id
        self._ids: list[int] = []

    async def turn(self, outcome: Outcome) -> int:
        """Ask once more, with all that was said."""
        ids = [*self._ids, *self._asked, *self._answer, self._stop_id]
        sampling = {"max_new_tokens": len(self._answer) + 1}
        request = {"input_ids": ids, "sampling_params": sampling, "rid": f"{self.mark}.{self.num_turns}"}
        status, body = await self.post("/generate", request)
        if status != 200:
            raise RuntimeError(f"{self.mark}: the engine answered with status {status}: {body}")
        found: list[int] = body["output_ids"]
        outcome.num_mixed_up += found != [*self._answer, self._stop_id]
        self._ids = [*ids, *found]
        self.num_turns += 1
        return len(found)


async def drive(harnesses: Sequence[Harness], load: Load) -> Outcome:
    """Send every request when it is due, each to a session that waits for no answer, drawn at random."""
    outcome, source, loop = Outcome(), random.Random(load.seed + 1), asyncio.get_running_loop()
    idle, begun = list(harnesses), loop.time()

    async def ask(harness: Harness, due_s: float) -> None:
        num_tokens = await harness.turn(outcome)
        outcome.answered.append((loop.time() - begun - due_s, num_tokens))
        idle.append(harness)

    async with asyncio.TaskGroup() as asking:
        for due_s in load.due_s():
            await asyncio.sleep(max(0.0, begun + due_s - loop.time()))
            outcome.max_late_s = max(outcome.max_late_s, loop.time() - begun - due_s)
            if not idle:
                outcome.num_skipped += 1  # every session waits for an answer: that is a result too
                continue
            index = source.randrange(len(idle))
            idle[index], idle[-1] = idle[-1], idle[index]
            asking.create_task(ask(idle.pop(), due_s))
    return outcome


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
