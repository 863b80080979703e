"""An HTTP server that answers what a test orders, in a thread of its own."""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DROP = "drop the connection without an answer"
HANG = "do not answer before the end"


@dataclass
class ScriptedServer:
    """Attributes:
    url: where it listens.
    script: replies in order: a status with a body, DROP or HANG. Then it says the length of the answer.
    requests: the bodies it got.
    paths, headers: of these requests.
    retry_after: the header Retry-After of the replies, in order, as long as there are any.
    most_at_once: most requests that it had at the same time.
    """

    url: str = ""
    script: deque[object] = field(default_factory=deque)
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    retry_after: deque[str] = field(default_factory=deque)
    most_at_once: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def reply_to(self, body: dict[str, Any]) -> object:
        with self.lock:
            self.requests.append(body)
            self.now += 1
            self.most_at_once = max(self.most_at_once, self.now)
            return self.script.popleft() if self.script else (200, {"score": len(body["solution_str"])})


@contextmanager
def scripted_server(*script: object) -> Iterator[ScriptedServer]:
    """A started one, gone at the end."""
    state = ScriptedServer(script=deque(script))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            with state.lock:
                state.paths.append(self.path)
                state.headers.append(dict(self.headers))
            reply = state.reply_to(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            try:
                self._answer(reply)
            finally:
                with state.lock:
                    state.now -= 1

        def _answer(self, reply: object) -> None:
            if reply == HANG:
                state.over.wait(30)
            if reply in (DROP, HANG):
                self.close_connection = True
                return
            assert isinstance(reply, tuple)
            status, body = reply
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if state.retry_after:
                self.send_header("Retry-After", state.retry_after.popleft())
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}/score"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
