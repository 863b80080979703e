"""Health, information, load, pausing, aborting and flushing."""

from __future__ import annotations

import time
from collections.abc import Mapping

from asyncrl.inference.local_engine.asgi import Access, Exchange, Reply, Route, json_reply
from asyncrl.inference.local_engine.request import RequestRefused
from asyncrl.inference.local_engine.service import PAUSE_MODES, Service

FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)


class ControlRoutes:
    """Routes about the server rather than about tokens."""

    def __init__(self, service: Service, facts: Mapping[str, object]) -> None:
        """`facts` are the settings that /server_info shows; no secrets."""
        self.service, self.facts = service, dict(facts)
        self._measured = (time.monotonic(), 0)

    def routes(self) -> list[Route]:
        """All of them, with SGLang's older names."""
        return [
            Route(("GET",), "/health", self.health, Access.OPEN),
            Route(("GET",), "/health_generate", self.health, Access.OPEN),
            Route(("GET",), "/ready", self.ready, Access.OPEN),
            Route(("GET",), "/model_info", self.model_info, Access.API),
            Route(("GET",), "/get_model_info", self.model_info, Access.API),
            Route(("GET",), "/server_info", self.server_info, Access.API),
            Route(("GET",), "/get_server_info", self.server_info, Access.API),
            Route(("GET",), "/v1/loads", self.loads, Access.API),
            Route(("POST",), "/pause_generation", self.pause),
            Route(("POST",), "/continue_generation", self.resume),
            Route(("POST",), "/abort_request", self.abort),
            Route(("GET", "POST"), "/flush_cache", self.flush),
        ]

    async def health(self, exchange: Exchange) -> Reply:
        """200 once a token came out; 503 after the timeout, always so while paused."""
        async with exchange.watched():
            return Reply(200 if await self.service.probe() else 503, content_type="text/plain")

    async def ready(self, exchange: Exchange) -> Reply:
        """What the last health probe found; generates nothing."""
        return Reply(200 if self.service.healthy else 503, content_type="text/plain")

    async def model_info(self, exchange: Exchange) -> Reply:
        """Answers at once, also while paused: the probe for liveness and version."""
        config = self.service.updates.engine.model.config
        return json_reply(
            {
                "model_path": self.service.model_path,
                "tokenizer_path": self.service.model_path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.service.version,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": config.model_type,
                "architectures": list(config.architectures),
                "load_format": "auto",
            }
        )

    async def server_info(self, exchange: Exchange) -> Reply:
        """The settings, and what the engine made of them."""
        engine = self.service.updates.engine
        state = {
            "linear": engine.compute.kind,
            "decode": engine.forward.decodes_with,
            "compute_dtype": str(engine.compute.dtype).removeprefix("torch."),
            "kv_cache_bytes": engine.cache.num_bytes(),
            "prefix_cache_bytes": engine.prefixes.num_bytes,
            "cached_prompts": len(engine.prefixes),
            "paused": self.service.gate.paused,
            "held_requests": self.service.gate.num_waiting,
            "released": sorted(self.service.updates.released),
        }
        return json_reply({**self.facts, "internal_states": [state], "version": "asyncrl-local"})

    async def loads(self, exchange: Exchange) -> Reply:
        """Requests and tokens right now; requests at the gate of a paused server count as neither, as in SGLang."""
        engine = self.service.updates.engine
        used = int(engine.rows.positions[: engine.rows.num].sum()) + engine.rows.num
        room = engine.settings.max_running * engine.settings.context_length
        now, (then, sampled) = time.monotonic(), self._measured
        self._measured = (now, engine.num_sampled)
        load = {
            "dp_rank": 0,
            "num_running_reqs": engine.rows.num,
            "num_waiting_reqs": len(engine.waiting),
            "num_total_reqs": engine.rows.num + len(engine.waiting),
            "num_used_tokens": used,
            "max_total_num_tokens": room,
            "token_usage": round(used / room, 4),
            # Tokens per second since this was last asked.
            "gen_throughput": round((engine.num_sampled - sampled) / max(now - then, 1e-9), 2),
            "max_running_requests": engine.settings.max_running,
        }
        return json_reply({"timestamp": time.time(), "dp_rank_count": 1, "loads": [load]})

    async def pause(self, exchange: Exchange) -> Reply:
        """Stops generating; the default mode aborts."""
        asked = _object(exchange).get("mode", "abort")
        mode = next((mode for mode in PAUSE_MODES if mode == asked), None)
        if mode is None:
            raise RequestRefused(f"mode is {asked!r}, expected one of {', '.join(PAUSE_MODES)}.")
        await self.service.pause(mode)
        return json_reply({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, exchange: Exchange) -> Reply:
        """Goes on; 200 without a pause too."""
        await self.service.resume()
        return json_reply({"message": "Generation continued successfully.", "status": "ok"})

    async def abort(self, exchange: Exchange) -> Reply:
        """Fire and forget: 200 for an unknown rid; its victims answer themselves."""
        body = _object(exchange)
        self.service.abort(str(body.get("rid") or ""), everything=bool(body.get("abort_all")))
        return Reply(200, content_type="text/plain")

    async def flush(self, exchange: Exchange) -> Reply:
        """Forgets cached prompts; 400 if something runs, or still runs after `timeout` seconds."""
        try:
            timeout_s = float(exchange.query.get("timeout", "0"))
        except ValueError as error:
            raise RequestRefused(f"timeout is {exchange.query['timeout']!r}, expected seconds.") from error
        if await self.service.engine.flush(max(0.0, timeout_s)):
            return Reply(200, FLUSHED, "text/plain")
        return Reply(400, b"Flush cache failed.\n", "text/plain")


def _object(exchange: Exchange) -> Mapping[str, object]:
    body = exchange.json()
    if not isinstance(body, dict):
        raise RequestRefused(f"the body is {type(body).__name__}, expected a JSON object.")
    return body
