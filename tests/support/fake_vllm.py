"""As fake_sglang, with vLLM's routes and answer shapes."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.fake_sglang import DROP, FakeServer, Reply

MODES = {("keep", "false"): "in_place", ("keep", "true"): "retract", ("abort", "true"): "abort"}


@dataclass
class FakeVllm(FakeServer):
    """What a test orders of it is ordered as of FakeServer. `ids_by_name`: logprobs name their tokens, as in earlier
    releases."""

    ids_by_name: bool = False
    query: dict[str, list[str]] | None = None

    async def route(self, method: str, path: str, headers: dict[str, str], body: Any) -> Any:
        split = urlsplit(path)
        self.query = parse_qs(split.query)
        if split.path != "/inference/v1/generate":
            return await super().route(method, path, headers, body)
        self.requests.append((split.path, body))
        self.paths.append(split.path)
        special = self.script.popleft() if self.script else None
        if special == DROP or (special is not None and not isinstance(special, str)):
            return special
        sampling = body["sampling_params"]
        own = {"sampling_seed": sampling["seed"], "max_new_tokens": sampling["max_tokens"]}
        question = {"rid": f"generate-tokens-{body['request_id']}", "input_ids": body["token_ids"]}
        status, answer = await self.answer_one({**question, "sampling_params": own}, special)
        return (status, self.as_vllm(answer)) if status == 200 else (status, answer)

    def as_vllm(self, answer: dict[str, Any]) -> dict[str, Any]:
        meta = answer["meta_info"]
        content = [
            {"logprob": logprob, **({"token": f"token_id:{one}"} if self.ids_by_name else {"token_id": one, "rank": 1})}
            for logprob, one, _ in meta["output_token_logprobs"]
        ]
        choice = {
            "index": 0,
            "token_ids": answer["output_ids"],
            "finish_reason": meta["finish_reason"]["type"],
            "logprobs": {"content": content},
            "weight_versions": meta.get("weight_versions"),
        }
        return {"request_id": meta["id"], "choices": [choice]}

    def do_weight_info(self, body: Any) -> Reply:
        return 200, {"weight_version": self.label}

    def do_metrics(self, body: Any) -> Reply:
        gauges = {"running": len(self.running), "waiting": 0}
        lines = [f'vllm:num_requests_{kind}{{engine="0",model_name="m"}} {num}.0' for kind, num in gauges.items()]
        return 200, "\n".join(["# HELP vllm:num_requests_running Requests", *lines, ""]).encode()

    def do_pause(self, body: Any) -> Reply:
        assert self.query is not None
        mode = MODES[self.query["mode"][0], self.query["clear_cache"][0]]
        return self.do_pause_generation({"mode": mode})

    def do_resume(self, body: Any) -> Reply:
        return self.do_continue_generation(body)

    def do_abort_requests(self, body: Any) -> Reply:
        for rid in body.get("request_ids") or [*self.running]:
            self.do_abort_request({"abort_all": False, "rid": rid})
        return 200, {"status": "aborted"}

    def do_collective_rpc(self, body: Any) -> Reply:
        if body["method"] == "load_staged":
            self.loader(self)
        return 200, {"results": [self.status]}

    def do_reset_prefix_cache(self, body: Any) -> Reply:
        assert self.query == {"reset_running_requests": ["true"]}
        return 200, b""
