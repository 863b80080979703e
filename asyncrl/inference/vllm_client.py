"""Ask one vLLM server what ServerClient asks of SGLang: the same calls, over vLLM's routes.

Tokens go in and out at /inference/v1/generate (`vllm serve --enable-scale-out`); pauses, versions and the weight loader
are routes of its development mode (VLLM_SERVER_DEV_MODE=1). What maps onto what, and what does not: docs/vllm.md.
Written after vLLM's documentation of its releases 0.32 and 0.33.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asyncrl.errors import ServerError
from asyncrl.inference.batching import Question
from asyncrl.inference.client import ServerClient
from asyncrl.inference.errors import MalformedAnswer, RequestRefused
from asyncrl.inference.protocol import Answer, LoaderStatus, Loads, ModelInfo, PauseMode, parse_answer, parse_status

GENERATE = "/inference/v1/generate"
RID_PREFIX = "generate-tokens-"
"""What the server puts before a request's id; aborts are asked for with it."""

NO_LOGPROB = -9999.0
"""What the server writes for minus infinity, which JSON does not have."""

_TOKEN_NAME = re.compile(r"token_id:(\d+)")
_GAUGE = re.compile(r"^vllm:num_requests_(running|waiting)(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)

_PAUSES: Mapping[PauseMode, str] = MappingProxyType(
    {
        "in_place": "/pause?mode=keep&clear_cache=false",
        "retract": "/pause?mode=keep&clear_cache=true",
        "abort": "/pause?mode=abort&clear_cache=true",
    }
)

# Also of requests that are paused: they are computed again from their tokens. Without it "keep" may leave their cache.
_RESET_CACHE = "/reset_prefix_cache?reset_running_requests=true"


class VllmClient(ServerClient):
    """One vLLM server by address; takes and raises what ServerClient does."""

    streams = False

    def __init__(self, url: str, **settings: Any) -> None:  # Any: ServerClient's, as they are
        super().__init__(url, **{**settings, "batches": False})  # the route takes one prompt

    async def _ask(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        return [await self._ask_one(question) for question in questions]

    async def _ask_one(self, question: Question) -> Answer | Exception:
        sampling = question.sampling
        request: dict[str, object] = {
            "request_id": question.rid,
            "token_ids": question.token_ids,
            "stream": False,
            "sampling_params": {
                "max_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": max(sampling.top_k, 0),
                "min_p": 0.0,
                "stop_token_ids": sampling.stop_token_ids,
                "seed": sampling.seed,
                "logprobs": 1,
                "detokenize": False,
            },
        }
        if question.extra_key is not None:
            request["cache_salt"] = question.extra_key
        try:
            body = await self._object("POST", GENERATE, request, question.deadline_s)
            return parse_answer(as_sglang(body, f"{self.url}{GENERATE}"), f"{self.url}{GENERATE}")
        except ServerError as error:
            return error

    async def model_info(self, deadline_s: float = 10.0) -> ModelInfo:
        """The version that its answers carry; it answers while paused. Of its model it says only the served name."""
        body = await self._object("GET", "/weight_info", None, deadline_s)
        return ModelInfo("", str(body.get("weight_version", "default")))

    async def loads(self, deadline_s: float | None = None) -> Loads:
        """From its metrics, summed over its engines."""
        reply = await self._connections.request(
            "GET", "/metrics", b"", deadline_s=self._control_s if deadline_s is None else deadline_s
        )
        if reply.status != 200:
            self._raise_for(reply.status, "/metrics", reply.body)
        found = _GAUGE.findall(reply.body.decode("utf-8", "replace"))
        if {kind for kind, _ in found} != {"running", "waiting"}:
            raise MalformedAnswer("shape", f"{self.url}/metrics: no vllm:num_requests_running and _waiting there")
        num = {kind: sum(int(float(value)) for one, value in found if one == kind) for kind in ("running", "waiting")}
        return Loads(num["running"], num["waiting"])

    async def pause(self, mode: PauseMode) -> None:
        """Stop between two steps, as ServerClient's modes say."""
        await self._call("POST", _PAUSES[mode], {})

    async def resume(self) -> None:
        """Go on after a pause."""
        await self._call("POST", "/resume", {})

    async def begin_update(self) -> None:
        """Nothing: the loader writes in place and needs no session."""

    async def end_update(self) -> None:
        """Nothing, as `begin_update`."""

    async def load_staged(self, loader: str, body: str, *, num_ranks: int, flush_cache: bool) -> None:
        """Run the weight loader in every engine rank; `loader` and `body` are the server's own from its start.

        The method is weightsync.vllm_worker's, which the server was started with as --worker-extension-cls.
        """
        await self._on_workers("load_staged", num_ranks)
        if flush_cache:
            await self._call("POST", _RESET_CACHE, {})

    async def weight_status(self, name: str = "@weightsync") -> LoaderStatus:
        """What the loader last said, on the rank where it went worst. `name`: there is one loader, whose it is."""
        ranks = [parse_status(values) for values in await self._on_workers("weight_status", None)]
        return max(ranks, key=lambda status: status.code)

    async def set_version(self, label: str) -> None:
        """Stamp the answers from here on; requests in flight go on."""
        await self._call("POST", "/update_weight_version", {"new_version": label})

    async def load_from_disk(self, path: Path, label: str) -> None:
        """Refused: the server has no route for it."""
        raise RequestRefused(
            f"{self.url}: a vLLM server does not load {path} ({label}) when it is told to; start it anew"
        )

    async def flush_cache(self, timeout_s: float = 30.0) -> None:
        """Drop cached prefixes."""
        await self._call("POST", _RESET_CACHE, {}, timeout_s)

    async def checksum(self) -> str:
        """The engine's own checksum of all its weights; refused while it is paused."""
        body = await self._object("POST", "/weight_checker", {"action": "checksum"}, self._control_s)
        return repr(sorted(dict(body.get("checksums", {})).items()))

    async def release_memory(self) -> None:
        """Give the device's memory back, weights to host memory. Needs --enable-sleep-mode."""
        await self._call("POST", "/sleep?level=1", {})

    async def resume_memory(self) -> None:
        """Take the device's memory again."""
        await self._call("POST", "/wake_up", {})

    async def abort(self, rid: str, deadline_s: float = 10.0) -> None:
        """Answer one request with what it has."""
        await self._call("POST", "/abort_requests", {"request_ids": [RID_PREFIX + rid]}, deadline_s)

    async def abort_all(self) -> None:
        """Answer every request with what it has."""
        await self._call("POST", "/abort_requests", {})

    async def _on_workers(self, method: str, num_ranks: int | None) -> list[Any]:  # Any: checked by the callers
        body = await self._object("POST", "/collective_rpc", {"method": method}, self._control_s)
        results = body.get("results")
        if not isinstance(results, list) or not results or (num_ranks is not None and len(results) != num_ranks):
            wanted = "an answer of each rank" if num_ranks is None else f"answers of {num_ranks} ranks"
            raise MalformedAnswer(
                "shape", f"{self.url}/collective_rpc {method}: expected {wanted}, found {str(body)[:200]}"
            )
        return results


def as_sglang(body: Mapping[str, Any], path: str) -> dict[str, object]:
    """An answer of /inference/v1/generate in the shape that `protocol.parse_answer` checks.

    Raises:
        MalformedAnswer: it has no choice, or logprobs in no form that is known.
    """
    try:
        (choice,) = body["choices"]
        token_ids, finish = choice["token_ids"] or [], choice["finish_reason"]
        content = (choice["logprobs"] or {}).get("content") or []
        pairs = [[_finite(entry["logprob"]), _token_id(entry), None] for entry in content]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise MalformedAnswer("shape", f"{path}: no answer in {str(body)[:200]} ({error!r:.100})") from error
    return {
        "output_ids": token_ids,
        "meta_info": {
            "finish_reason": {"type": finish},
            "output_token_logprobs": pairs,
            "weight_versions": choice.get("weight_versions"),
        },
    }


def _token_id(entry: Mapping[str, Any]) -> int:
    """Later releases have a field for it, earlier ones write it in the token's place."""
    if "token_id" in entry:
        return int(entry["token_id"])
    named = _TOKEN_NAME.fullmatch(entry["token"])
    if named is None:
        raise ValueError(f"the token {entry['token']!r} is no id: start the server with --return-tokens-as-token-ids")
    return int(named[1])


def _finite(logprob: float) -> float | None:
    return None if logprob <= NO_LOGPROB else logprob
