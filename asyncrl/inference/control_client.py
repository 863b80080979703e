"""Ask one inference server for what is no token: how it is, and the calls that change its weights.

Every request has a deadline; every failure is one of `errors`' three. Traps of the protocol that this module absorbs
(SGLang 0.5.23): the default of update_weight_version aborts everything; a client that died leaves the update session
open; /health hangs while paused, so /model_info is the probe.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncrl.inference.connections import Connections
from asyncrl.inference.errors import BUSY, MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.inference.key import KEY_VARIABLE, server_key
from asyncrl.inference.protocol import LoaderStatus, Loads, ModelInfo, PauseMode, parse_status


class ControlClient:
    """One server by address. Not thread-safe, and bound to the event loop that it is used in.

    Args:
        url: http://host:port.
        api_key: sent with every call, as a bearer; None: the environment's (see `key`).
        control_s: deadline of each call.
    """

    def __init__(self, url: str, *, api_key: str | None = None, control_s: float = 120.0) -> None:
        self.url, self._control_s = url.rstrip("/"), control_s
        key = api_key or server_key()
        self._connections = Connections(self.url, {"Authorization": f"Bearer {key}"} if key else {})

    async def close(self) -> None:
        """Close idle connections; those in use are closed when their request ends."""
        await self._connections.close()

    async def model_info(self, deadline_s: float = 10.0) -> ModelInfo:
        """What the server serves; answers also while paused, so it is the probe."""
        body = await self._object("GET", "/model_info", None, deadline_s)
        return ModelInfo(str(body.get("model_path")), str(body.get("weight_version", "default")))

    async def server_info(self) -> Mapping[str, Any]:  # Any: what a server says of its settings is checked by use
        """What the server was started with, under SGLang's names."""
        return await self._object("GET", "/server_info", None, self._control_s)

    async def loads(self, deadline_s: float | None = None) -> Loads:
        """Requests that run and wait at the server, which asks its engine."""
        body = await self._object("GET", "/v1/loads", None, self._control_s if deadline_s is None else deadline_s)
        try:
            ranks = body.get("loads", [body])
            return Loads(
                sum(int(rank.get("num_running_reqs", 0)) for rank in ranks),
                sum(int(rank.get("num_waiting_reqs", 0)) for rank in ranks),
            )
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise MalformedAnswer("shape", f"{self.url}/v1/loads: no loads in {str(body)[:200]}") from error

    async def pause(self, mode: PauseMode) -> None:
        """Stop between two steps. `in_place` keeps requests and their KV, `retract` recomputes KV later, `abort`
        answers requests with what they have and holds new ones back."""
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on after a pause; without one it does nothing."""
        await self._call("POST", "/continue_generation", {"torch_empty_cache": False})

    async def begin_update(self) -> None:
        """Open a weight update session; one that a dead client left open is closed first.

        Of the model that is trained: SGLang would call the loader for a draft model too, which is another model.
        """
        try:
            await self._success("/begin_weight_update", {"selector": "target"})
        except RequestRefused as refusal:
            try:
                await self.end_update()
            except RequestRefused:  # no session was open, so that was not the reason
                raise refusal from None
            await self._success("/begin_weight_update", {"selector": "target"})

    async def end_update(self) -> None:
        """Close the session."""
        await self._success("/end_weight_update", {})

    async def load_staged(self, loader: str, body: str, *, num_ranks: int, flush_cache: bool) -> None:
        """Run the weight loader in every engine rank, between begin_update and end_update.

        The answer is always success: what happened is in `weight_status`, so no version is stamped here.
        """
        await self._success(
            "/update_weights_from_tensor",
            {
                "serialized_named_tensors": [body] * num_ranks,
                "load_format": loader,
                "selector": "target",
                "flush_cache": flush_cache,
                "abort_all_requests": False,
                "weight_version": None,
            },
        )

    async def weight_status(self, name: str = "@weightsync") -> LoaderStatus:
        """What the engine's weight loader holds. Raises RequestRefused when no loader has run in it yet."""
        return parse_status(await self.ask_loader(name))

    async def ask_loader(self, name: str) -> list[float]:
        """Numbers that the engine's weight loader answers to a name. Raises RequestRefused when it has none."""
        values = await self._call("POST", "/get_weights_by_name", {"name": name, "truncate_size": 100})
        if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
            raise RequestRefused(f"{self.url}/get_weights_by_name: {name!r} gave {str(values)[:200]}, not numbers.")
        return values

    async def set_version(self, label: str) -> None:
        """Stamp the answers from here on; requests in flight go on."""
        await self._success("/update_weight_version", {"new_version": label, "abort_all_requests": False})

    async def load_from_disk(self, path: Path, label: str) -> None:
        """Replace all weights by those of a model directory that the server can read."""
        await self._success(
            "/update_weights_from_disk",
            {"model_path": str(path), "weight_version": label, "flush_cache": True, "abort_all_requests": False},
        )

    async def flush_cache(self, timeout_s: float = 30.0) -> None:
        """Drop cached prefixes; waits up to `timeout_s` for running requests."""
        await self._call("POST", f"/flush_cache?timeout={timeout_s:g}", {})

    async def checksum(self) -> str:
        """The engine's own checksum of all its weights: one read of them."""
        body = await self._success("/weights_checker", {"action": "checksum"})
        return json.dumps(body.get("per_engine_checksum"), sort_keys=True)

    async def release_memory(self) -> None:
        """Give the device's memory back. Only when idle: a busy SGLang server dies of it."""
        await self._call("POST", "/release_memory_occupation", {"tags": ["kv_cache", "weights"]})

    async def resume_memory(self) -> None:
        """Take the device's memory again."""
        await self._call("POST", "/resume_memory_occupation", {"tags": ["weights", "kv_cache"]})

    async def abort(self, rid: str, deadline_s: float = 10.0) -> None:
        """Answer one request with what it has. No answer tells whether the server knew it: one that has not arrived
        there yet, or waits at the door of a paused server, goes on."""
        await self._call("POST", "/abort_request", {"rid": rid, "abort_all": False}, deadline_s)

    async def abort_all(self) -> None:
        """Answer every request with what it has."""
        await self._call("POST", "/abort_request", {"rid": "", "abort_all": True})

    async def _success(self, path: str, request: Mapping[str, object]) -> Mapping[str, Any]:
        body = await self._call("POST", path, request)
        answer = body if isinstance(body, Mapping) else {}
        if answer.get("success") is False:
            raise RequestRefused(f"{self.url}{path}: {str(answer.get('message'))[:200]}")
        return answer

    async def _object(
        self, method: str, path: str, request: Mapping[str, object] | None, deadline_s: float
    ) -> Mapping[str, Any]:
        body = await self._call(method, path, request, deadline_s)
        if not isinstance(body, Mapping):
            raise MalformedAnswer("shape", f"{self.url}{path}: expected an object, found {str(body)[:200]}")
        return body

    async def _call(
        self, method: str, path: str, request: Mapping[str, object] | bytes | None, deadline_s: float | None = None
    ) -> Any:  # Any: decoded JSON, checked by the callers
        data = request if isinstance(request, bytes) else b"" if request is None else encoded(request)
        reply = await self._connections.request(
            method, path, data, deadline_s=self._control_s if deadline_s is None else deadline_s
        )
        if reply.status != 200:
            self._raise_for(reply.status, path, reply.body)
        if not reply.body:
            return None
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            if path.startswith(("/flush_cache", "/abort_request")):
                return None  # these answer in plain text
            raise MalformedAnswer("not_json", f"{self.url}{path}: 200 but not JSON: {reply.body[:200]!r}") from error

    def _raise_for(self, status: int, path: str, body: bytes) -> None:
        text = body[:200].decode("utf-8", "replace")
        if status in (401, 403):
            raise RequestRefused(
                f"{self.url}{path}: status {status}: the server wants a key, or another one. Set it in the environment "
                f"variable {KEY_VARIABLE} of serve-rollout; weight routes want the admin key when the server has one."
            )
        message = f"{self.url}{path}: status {status}: {text}"
        if status in BUSY:
            raise ServerBusy(message)
        raise ServerUnavailable(message) if status >= 500 else RequestRefused(message)


_json = json.JSONEncoder(separators=(",", ":"))  # json.dumps would make one for each request


def encoded(request: Mapping[str, object]) -> bytes:
    """The body of a request."""
    return _json.encode(request).encode()
