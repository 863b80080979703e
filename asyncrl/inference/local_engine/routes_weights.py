"""Weight updates, versions, checksums and memory: routes over `weight_updates`, in the engine thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from asyncrl.inference.local_engine.asgi import Exchange, Reply, Route, json_reply
from asyncrl.inference.local_engine.request import RequestRefused
from asyncrl.inference.local_engine.service import Service

T = TypeVar("T")


class WeightRoutes:
    """Control routes that touch weights. Without a pause each waits until running requests are done, as in SGLang."""

    def __init__(self, service: Service) -> None:
        self.service, self.updates = service, service.updates

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route(("POST",), "/begin_weight_update", self.begin),
            Route(("POST",), "/end_weight_update", self.end),
            Route(("POST",), "/update_weights_from_tensor", self.from_tensor),
            Route(("POST",), "/update_weights_from_disk", self.from_disk),
            Route(("POST",), "/update_weight_version", self.set_version),
            Route(("GET", "POST"), "/get_weights_by_name", self.by_name),
            Route(("POST",), "/weights_checker", self.check),
            Route(("GET", "POST"), "/release_memory_occupation", self.release),
            Route(("GET", "POST"), "/resume_memory_occupation", self.resume),
        ]

    async def _alone(self, function: Callable[[], T]) -> T:
        async with self.service.gate.update():
            return await self.service.engine.call(function)

    async def begin(self, exchange: Exchange) -> Reply:
        """Opens a session; 400 if one is open."""
        return json_reply({"success": True, "message": await self._alone(self.updates.begin)})

    async def end(self, exchange: Exchange) -> Reply:
        """Closes the session; 400 if none is open."""
        return json_reply({"success": True, "message": await self._alone(self.updates.end)})

    async def from_tensor(self, exchange: Exchange) -> Reply:
        """Runs a loader; the answer says success whatever a custom loader did, since its return value is not seen."""
        body = _object(exchange)
        payloads, load_format = body.get("serialized_named_tensors"), body.get("load_format")
        if not isinstance(payloads, list) or not all(isinstance(payload, str) for payload in payloads):
            raise RequestRefused("serialized_named_tensors must be a list of base64 strings, one per rank.")
        if load_format is not None and not isinstance(load_format, str):
            raise RequestRefused(f"load_format must be a string or null, got {load_format!r}.")
        version = _version(body)
        if body.get("abort_all_requests"):
            self.service.abort("", everything=True)
        flush = body.get("flush_cache", True) is not False
        message = await self._alone(
            lambda: self.updates.from_tensor(payloads, load_format, flush_cache=flush, version=version)
        )
        return self._stamped({"success": True}, message, version)

    async def from_disk(self, exchange: Exchange) -> Reply:
        """Loads a model directory; 400 with the weights unchanged if it does not fit."""
        body = _object(exchange)
        path, load_format = body.get("model_path"), body.get("load_format")
        if not isinstance(path, str):
            raise RequestRefused("model_path must be a directory that this server can read.")
        if load_format not in (None, "auto", "safetensors"):
            raise RequestRefused(f"load_format {load_format!r} is not implemented by the local engine: safetensors is.")
        version = _version(body)
        if body.get("abort_all_requests"):
            self.service.abort("", everything=True)
        flush = body.get("flush_cache", True) is not False
        paused = len(self.updates.engine.waiting) + self.updates.engine.rows.num
        message = await self._alone(lambda: self.updates.from_disk(path, flush_cache=flush, version=version))
        self.service.model_path = path
        return self._stamped({"success": True, "num_paused_requests": paused}, message, version)

    def _stamped(self, answer: dict[str, object], message: str, version: str | None) -> Reply:
        if version is not None:
            self.service.version = version
            message += f" Weight version updated to {version}."
        return json_reply({**answer, "message": message})

    async def set_version(self, exchange: Exchange) -> Reply:
        """Stamps tokens from now on. The default aborts everything, as in SGLang: send abort_all_requests false."""
        body = _object(exchange)
        version = body.get("new_version")
        if not isinstance(version, str):
            raise RequestRefused(f"new_version must be a string, got {version!r}.")
        if body.get("abort_all_requests", True) is not False:
            self.service.abort("", everything=True)
        await self.service.set_version(version)
        return json_reply({"success": True, "message": f"Weight version updated to {version}", "new_version": version})

    async def by_name(self, exchange: Exchange) -> Reply:
        """A parameter's first rows, or whatever a loader put in the model's `get_weights_by_name`."""
        body = _object(exchange)
        name, size = body.get("name"), body.get("truncate_size", 100)
        if not isinstance(name, str) or not isinstance(size, int):
            raise RequestRefused("name must be a string and truncate_size an integer.")
        values = await self.service.engine.call(lambda: self.updates.by_name(name, size))
        if values is None:
            raise RequestRefused("Get parameter by name failed")
        return json_reply(values)

    async def check(self, exchange: Exchange) -> Reply:
        """Hashes of the weights in use."""
        action = _object(exchange).get("action", "checksum")
        if action != "checksum":
            raise RequestRefused(f"action {action!r} is not implemented by the local engine, which has 'checksum'.")
        return json_reply(await self.service.engine.call(self.updates.checksum))

    async def release(self, exchange: Exchange) -> Reply:
        """Gives memory back; ends the server if a request runs or waits, as in SGLang."""
        tags = _tags(exchange)
        await self.service.engine.call(lambda: self.updates.release(tags))
        return json_reply(None)

    async def resume(self, exchange: Exchange) -> Reply:
        """Takes memory again."""
        tags = _tags(exchange)
        await self.service.engine.call(lambda: self.updates.resume(tags))
        return json_reply(None)


def _object(exchange: Exchange) -> Mapping[str, object]:
    body = exchange.json()
    if not isinstance(body, dict):
        raise RequestRefused(f"the body is {type(body).__name__}, expected a JSON object.")
    return body


def _version(body: Mapping[str, object]) -> str | None:
    version = body.get("weight_version")
    if version is not None and not isinstance(version, str):
        raise RequestRefused(f"weight_version must be a string or null, got {version!r}.")
    return version


def _tags(exchange: Exchange) -> list[str] | None:
    tags = _object(exchange).get("tags")
    if tags is not None and not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise RequestRefused(f"tags must be a list of strings or null, got {tags!r}.")
    return tags
