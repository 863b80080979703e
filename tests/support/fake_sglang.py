"""A small inference server with SGLang's routes and answer shapes, whose misbehaviour a test can order.

It samples from no model: a token is a pure function of the request's seed and the token's position, so an answer that
was cut and continued, or asked of another server, equals one that was not. It runs in a thread with its own loop.
"""

import asyncio
import base64
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from asyncrl.inference.launcher import LOADER

DROP = "drop the connection without an answer"
STOP_ID = 2
VOCAB = 100

Reply = tuple[int, object]


def token(seed: int, position: int) -> int:
    """Token that a request with `seed` draws at `position` of its sequence."""
    return 3 + (seed * 31 + position * 7 + (seed >> 5)) % (VOCAB - 3)


@dataclass
class FakeServer:
    """State of one server, and what tests may change: `script` holds special replies for the next /generate calls."""

    port: int = 0
    answer_tokens: int = 4
    ends_at: int | None = None  # length of the sequence at which every answer ends, in place of answer_tokens
    max_running: int = 1000
    label: str = "default"
    key: str | None = None
    experts: Callable[[int, int], list[list[int]]] | None = None  # of a token and its position, by layer
    spans: bool = True
    close_after: bool = False
    script: deque[object] = field(default_factory=deque)
    requests: list[tuple[str, Any]] = field(default_factory=list)
    hold: bool = False
    refused: list[int] | None = None
    paused: str | None = None
    session: bool = False
    info: dict[str, Any] = field(default_factory=lambda: {"custom_weight_loader": [LOADER], "tp_size": 1})
    asleep: bool = False
    running: dict[str, "Future[str] | asyncio.Future[str]"] = field(default_factory=dict)
    status: list[int] | None = None
    loader: Callable[["FakeServer"], None] = lambda server: None
    paths: list[str] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bodies(self, path: str) -> list[Any]:
        """The bodies sent to one route, in order."""
        return [body for route, body in self.requests if route == path]

    def release(self) -> None:
        """Let held requests finish."""
        self.hold = False
        self._in_loop(lambda: [future.set_result("go") for future in self.running.values() if not future.done()])

    def drop_all(self) -> None:
        """Cut every connection: what a dying server looks like."""
        self._in_loop(lambda: [writer.transport.abort() for writer in self.writers])

    def _in_loop(self, call: Callable[[], object]) -> None:
        assert self.loop is not None
        done: Future[None] = Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result((call(), None)[1]))
        done.result(10)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")
                method, path, _ = lines[0].split(" ")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
                raw = await reader.readexactly(int(headers.get("content-length", "0")))
                body = json.loads(raw) if raw else None
                reply = await self.route(method, path, headers, body)
                if reply == DROP:
                    return
                await self.send(writer, *reply)
                if self.close_after:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            self.writers.discard(writer)
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, status: int, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data))
        )
        writer.write(data)
        await writer.drain()

    async def route(self, method: str, path: str, headers: dict[str, str], body: Any) -> Any:
        path = path.split("?")[0]
        self.requests.append((path, body))
        self.paths.append(path)
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        if path == "/generate":
            return await self.generate(body)
        handler = getattr(self, "do" + path.replace("/", "_"), None)
        return (404, {"detail": "Not Found"}) if handler is None else handler(body)

    def questions(self) -> list[dict[str, Any]]:
        """What was asked of /generate, one body for each question of a batch."""
        return [one for body in self.bodies("/generate") for one in split(body)]

    async def generate(self, body: dict[str, Any]) -> Any:
        special = self.script.popleft() if self.script else None
        if special is not None and not isinstance(special, str):
            return special
        if special == DROP:
            return DROP
        if self.refused is not None and any(one["input_ids"] == self.refused for one in split(body)):
            return 400, {"error": "one of the prompts is too long"}
        questions = split(body)
        # What is ordered of one request of a batch is ordered of its first question.
        orders = [special, *[None] * (len(questions) - 1)]
        replies = await asyncio.gather(*map(self.answer_one, questions, orders))
        failed = next((reply for reply in replies if reply[0] != 200), None)
        answers = [answer for _, answer in replies]
        return failed or (200, answers if isinstance(body["input_ids"][0], list) else answers[0])

    async def answer_one(self, body: dict[str, Any], special: str | None) -> Any:
        rid = body["rid"]
        if rid in self.running:
            return 400, {"error": "Duplicate request ID detected"}
        future = asyncio.get_running_loop().create_future()
        self.running[rid] = future
        verdict = "go"
        try:
            while self.paused:
                await asyncio.wait([future], timeout=0.01)
                if future.done() and future.result() == "abort":
                    break
            if special == "abort":
                verdict = "abort"
            elif self.hold or special == "hold":
                verdict = await future
        finally:
            del self.running[rid]
        return 200, self.answer(body, verdict)

    def answer(self, body: dict[str, Any], verdict: str) -> dict[str, Any]:
        sampling, ids = body["sampling_params"], body["input_ids"]
        most = sampling["max_new_tokens"]
        whole = self.answer_tokens if self.ends_at is None else max(0, self.ends_at - 1 - len(ids))
        wanted = whole if verdict == "go" else whole // 2
        out = [token(sampling["sampling_seed"], len(ids) + index) for index in range(min(wanted, most))]
        finish: dict[str, Any] = {"type": "length", "length": most}
        if verdict == "abort":
            finish = {"type": "abort", "message": "Aborted"}
        elif len(out) < most:
            out.append(STOP_ID)
            finish = {"type": "stop", "matched": STOP_ID}
        meta = {
            "id": body["rid"],
            "finish_reason": finish,
            "prompt_tokens": len(ids),
            "completion_tokens": len(out),
            "weight_version": self.label,
            "output_token_logprobs": [[-0.5 - 0.01 * index, one, None] for index, one in enumerate(out)],
        }
        if self.spans:
            meta["weight_versions"] = [{"version": self.label, "start": 0, "end": len(out)}]
        if body.get("return_routed_experts") and self.experts is not None:
            read = np.array([self.experts(one, at) for at, one in enumerate([*ids, *out[:-1]])], dtype="<i4")
            meta["routed_experts"] = base64.b64encode(read.tobytes()).decode()
        return {"text": "", "output_ids": out, "meta_info": meta}

    def do_model_info(self, body: Any) -> Reply:
        return 200, {"model_path": "/model", "weight_version": self.label}

    def do_server_info(self, body: Any) -> Reply:
        return 200, self.info

    def do_v1_loads(self, body: Any) -> Reply:
        return 200, {"loads": [{"num_running_reqs": len(self.running), "num_waiting_reqs": 0}]}

    def do_pause_generation(self, body: Any) -> Reply:
        self.paused = body["mode"]
        if self.paused == "abort":
            for future in self.running.values():
                if not future.done():
                    future.set_result("abort")  # type: ignore[union-attr]  # asyncio's, made in generate
        return 200, {"message": "", "status": "ok"}

    def do_continue_generation(self, body: Any) -> Reply:
        self.paused = None
        return 200, {"message": "", "status": "ok"}

    def do_abort_request(self, body: Any) -> Reply:
        if not body["abort_all"] and body["rid"] not in self.running:
            return 200, b""  # by prefix, but only where the id itself is known
        for rid, future in self.running.items():
            if (body["abort_all"] or rid.startswith(body["rid"])) and not future.done():
                future.set_result("abort")  # type: ignore[union-attr]  # asyncio's, made in generate
        return 200, b""

    def do_begin_weight_update(self, body: Any) -> Reply:
        if self.session:
            return 400, {"success": False, "message": "already open"}
        self.session = True
        return 200, {"success": True, "message": ""}

    def do_end_weight_update(self, body: Any) -> Reply:
        if not self.session:
            return 400, {"success": False, "message": "none open"}
        self.session = False
        return 200, {"success": True, "message": ""}

    def do_update_weights_from_tensor(self, body: Any) -> Reply:
        if not self.session:
            return 400, {"success": False, "message": "outside a session"}
        self.loader(self)
        return 200, {"success": True, "message": "Success"}

    def do_get_weights_by_name(self, body: Any) -> Reply:
        return (400, {"error": "no such name"}) if self.status is None else (200, self.status)

    def do_update_weight_version(self, body: Any) -> Reply:
        self.label = body["new_version"]
        return 200, {"success": True, "message": ""}

    def do_update_weights_from_disk(self, body: Any) -> Reply:
        self.label, self.status = body["weight_version"], None
        return 200, {"success": True, "message": "", "num_paused_requests": 0}

    def do_flush_cache(self, body: Any) -> Reply:
        return 200, b"Cache flushed."

    def do_weights_checker(self, body: Any) -> Reply:
        return 200, {"success": True, "ranks": [], "per_engine_checksum": f"checksum of {self.label}"}

    def do_release_memory_occupation(self, body: Any) -> Reply:
        if self.running:
            return 500, {"error": "busy"}
        self.asleep = True
        return 200, None

    def do_resume_memory_occupation(self, body: Any) -> Reply:
        self.asleep = False
        return 200, None


Fake = TypeVar("Fake", bound=FakeServer)


def split(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A body as one for each of its questions."""
    if not isinstance(body["input_ids"][0], list):
        return [body]
    each = zip(body["input_ids"], body["sampling_params"], body["rid"], strict=True)
    return [{**body, "input_ids": ids, "sampling_params": sampling, "rid": rid} for ids, sampling, rid in each]


@contextmanager
def running_fake(kind: type[Fake] = FakeServer, **settings: Any) -> Iterator[Fake]:  # type: ignore[assignment]
    """A started server on a free port of the loopback, gone at the end."""
    server = kind(**settings)
    ready: Future[int] = Future()
    finish: asyncio.Event | None = None

    async def main() -> None:
        nonlocal finish
        finish = asyncio.Event()
        server.loop = asyncio.get_running_loop()
        server.listener = await asyncio.start_server(server.serve, "127.0.0.1", server.port)
        ready.set_result(server.listener.sockets[0].getsockname()[1])
        await finish.wait()
        server.listener.close()
        for writer in list(server.writers):
            writer.transport.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="fake-sglang")
    thread.start()
    server.port = ready.result(10)
    try:
        yield server
    finally:
        assert server.loop is not None
        assert finish is not None
        server.loop.call_soon_threadsafe(finish.set)
        thread.join()
