"""A cheap inference server with SGLang's routes at a stated speed: what is measured against it is whoever asks it.

    python -m tests.support.fast_engine [--tokens-per-s 1000] [--answer-tokens 16] [--sign-id N] [--stop-id N] ...

It samples nothing. An answer repeats the ids behind the last sign (`--sign-id`) of its prompt, up to its end: a prompt
with a mark of its own gets that mark back, so an answer that went to another one is known. One that was cut goes on
where it was. Without a sign it is the stop id's neighbour, again and again. Each answer takes its number of tokens by
`tokens_per_s`, however many there are at once. One line on stdout when it listens: its port.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
OK = b'{"success":true,"message":"","status":"ok"}'


@dataclass(frozen=True)
class Settings:
    """How it answers.

    Attributes:
        answer_tokens: most ids of an answer, the stop id included.
        slow_sign_id: a sign whose answers come at `slow_tokens_per_s`.
        label: weight version of every token.
    """

    port: int = 0
    tokens_per_s: float = 1000.0
    answer_tokens: int = 16
    sign_id: int = -1
    stop_id: int = 2
    label: str = "default"
    slow_sign_id: int = -1
    slow_tokens_per_s: float = 5.0

    def answer(self, prompt: Sequence[int], most: int) -> tuple[list[int], float]:
        """The ids of an answer to a prompt: at most `most`, the stop id last unless it is cut there; and their rate."""
        signs = {self.sign_id: self.tokens_per_s, self.slow_sign_id: self.slow_tokens_per_s}
        begin = max(_after_last(prompt, sign) for sign in signs)
        if not begin:
            return [*[self.stop_id + 1] * (self.answer_tokens - 1), self.stop_id][:most], self.tokens_per_s
        end = next((at for at in range(begin, len(prompt)) if prompt[at] == self.stop_id), len(prompt))
        mark = list(prompt[begin:end])[: self.answer_tokens - 1]
        # A prompt that ends with the beginning of its answer is continued.
        so_far = next(size for size in range(len(mark), -1, -1) if list(prompt[len(prompt) - size :]) == mark[:size])
        return [*mark[so_far:], self.stop_id][:most], signs[prompt[begin - 1]]


def _after_last(prompt: Sequence[int], sign: int) -> int:
    """Where what stands behind the last `sign` begins; 0: there is none."""
    return len(prompt) - list(reversed(prompt)).index(sign) if sign in prompt else 0


class FastEngine:
    """What the connections of one server share."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: dict[str, asyncio.Future[bool]] = {}
        self.num_answers = self.num_aborts = 0

    async def reply(self, path: str, body: Any) -> bytes:
        """The body of the answer to one request, whose own is decoded."""
        if path == "/generate":
            return await self._generate(body)
        if path == "/model_info":
            return json.dumps({"model_path": "/model", "weight_version": self._settings.label}).encode()
        if path == "/v1/loads":
            loads = [{"num_running_reqs": len(self._running), "num_waiting_reqs": 0}]
            return json.dumps({"loads": loads}).encode()
        if path == "/counts":
            counts = {"answers": self.num_answers, "aborts": self.num_aborts, "running": len(self._running)}
            return json.dumps(counts).encode()
        if path == "/abort_request":
            self._abort(body)
        return OK

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """The answer to one streamed request: what there is so far after every `stream_interval` tokens, then all."""
        prompt, sampling, rid = body["input_ids"], body["sampling_params"], body["rid"]
        ids, tokens_per_s = self._settings.answer(prompt, sampling["max_new_tokens"])
        every = sampling.get("stream_interval", 1)
        answering = asyncio.ensure_future(self._answer(prompt, sampling, rid))
        try:
            for size in range(every, len(ids), every):
                await asyncio.wait((answering,), timeout=every / tokens_per_s)
                if answering.done():
                    break
                yield self._body(rid, len(prompt), ids[:size], None)
            yield await answering
            yield b"[DONE]"
        finally:
            answering.cancel()

    def _abort(self, body: dict[str, Any]) -> None:
        for rid, future in self._running.items():
            if (body["abort_all"] or rid.startswith(body["rid"])) and not future.done():
                future.set_result(True)

    async def _generate(self, body: dict[str, Any]) -> bytes:
        if not isinstance(body["input_ids"][0], list):
            return await self._answer(body["input_ids"], body["sampling_params"], body["rid"])
        each = zip(body["input_ids"], body["sampling_params"], body["rid"], strict=True)
        answers = await asyncio.gather(*(self._answer(*one) for one in each))
        return b"[" + b",".join(answers) + b"]"

    async def _answer(self, prompt: list[int], sampling: dict[str, Any], rid: str) -> bytes:
        loop = asyncio.get_running_loop()
        most = sampling["max_new_tokens"]
        ids, tokens_per_s = self._settings.answer(prompt, most)
        future: asyncio.Future[bool] = loop.create_future()
        self._running[rid] = future
        timer = loop.call_later(len(ids) / tokens_per_s, _settle, future)
        begun = loop.time()
        try:
            aborted = await future
        except asyncio.CancelledError:
            self.num_aborts += 1  # its client has closed the connection
            raise
        finally:
            timer.cancel()
            del self._running[rid]
        finish: dict[str, object] = {"type": "length", "length": most}
        if aborted:
            ids = ids[: int((loop.time() - begun) * tokens_per_s)]
            finish = {"type": "abort", "message": "Aborted"}
            self.num_aborts += 1
        elif ids[-1] == self._settings.stop_id:
            finish = {"type": "stop", "matched": self._settings.stop_id}
        self.num_answers += 1
        return self._body(rid, len(prompt), ids, finish)

    def _body(self, rid: str, num_prompt: int, ids: list[int], finish: dict[str, object] | None) -> bytes:
        label = self._settings.label
        meta: dict[str, object] = {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": num_prompt,
            "completion_tokens": len(ids),
            "output_token_logprobs": [[-0.5, one, None] for one in ids],
        }
        if finish is not None:  # not before, as SGLang does
            versions = [{"version": label, "start": 0, "end": len(ids)}]
            meta |= {"weight_version": label, "weight_versions": versions}
        return json.dumps({"text": "", "output_ids": ids, "meta_info": meta}).encode()


def _settle(future: asyncio.Future[bool]) -> None:
    """All its tokens are there: it was not aborted."""
    if not future.done():
        future.set_result(False)


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, the next request. Closing it aborts what it asked for."""

    def __init__(self, engine: FastEngine) -> None:
        self._engine, self._data = engine, bytearray()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, blank, rest = self._data.partition(b"\r\n\r\n")
        if not blank:
            return
        first, *lines = bytes(head).split(b"\r\n")
        fields = [line.split(b":", 1) for line in lines]
        length = next((int(value) for name, value in fields if name.lower() == b"content-length"), 0)
        if len(rest) >= length:
            self._data = rest[length:]
            path = first.split(b" ")[1].split(b"?")[0].decode()
            self._task = asyncio.ensure_future(self._answer(path, bytes(rest[:length])))

    async def _answer(self, path: str, body: bytes) -> None:
        assert self._transport is not None
        asked = json.loads(body) if body else {}
        if path == "/generate" and asked.get("stream"):
            self._transport.write(STREAM_HEAD)
            async for event in self._engine.events(asked):
                self._transport.write(b"%x\r\ndata: %b\n\n\r\n" % (len(event) + 8, event))
            self._transport.write(b"0\r\n\r\n")
            return
        data = await self._engine.reply(path, asked)
        self._transport.write(HEAD % (200, len(data)) + data)


@contextmanager
def running_engine(settings: Settings) -> Iterator[str]:
    """The URL of one in a process of its own, gone at the end."""
    options = [f"--{field.name.replace('_', '-')}={getattr(settings, field.name)}" for field in fields(Settings)]
    command = [sys.executable, "-m", "tests.support.fast_engine", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.strip().isdigit(), f"the engine said {line!r} in place of its port"
            yield f"http://127.0.0.1:{int(line)}"
        finally:
            process.kill()


async def main(settings: Settings) -> None:
    """Serve until killed."""
    engine = FastEngine(settings)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", settings.port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    asyncio.run(main(Settings(**vars(parser.parse_args()))))
