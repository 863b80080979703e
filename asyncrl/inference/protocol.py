"""SGLang's HTTP protocol as types: what is asked, what is answered, and what makes an answer unusable.

Only the shapes; asking is `client`'s. Routes and traps: SGLang 0.5.23. An answer is checked before anyone sees it:
its ids, logprobs and version spans must agree with each other, since one that does not would train on the wrong
token or the wrong weights without any error.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from asyncrl.errors import PreflightError
from asyncrl.inference.errors import MalformedAnswer, RequestRefused, ServerBusy, ServerUnavailable
from asyncrl.inference.experts import Experts

PauseMode = Literal["in_place", "retract", "abort"]
FinishReason = Literal["stop", "length", "abort"]
SEED_BITS = 63  # the server keeps seeds in a signed 64-bit tensor

Json = Mapping[str, Any]  # Any: a decoded JSON object has no narrower type before it is checked


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Every value is sent with every request, so that no server default decides.

    Attributes:
        max_new_tokens: most tokens of this answer, at least 1.
        temperature: recorded logprobs are those of logits / temperature. 0: the likeliest token each time, with the
            logprobs of the logits as they are.
        top_p: nucleus, 1 = off. The recorded logprobs are not renormalised for top_p and top_k.
        top_k: -1 = all.
        stop_token_ids: ids that end an answer, and are part of it.
        seed: below 2**63. SGLang ignores it outside its deterministic mode; the local engine never does.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: tuple[int, ...]
    seed: int

    def to_json(self) -> dict[str, object]:
        """The `sampling_params` of a request."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop_token_ids": self.stop_token_ids,
            "sampling_seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class VersionRun:
    """A run of an answer's tokens under one weight version, by the server's label for it; empty: it named none."""

    label: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A usable answer to one generation request.

    Attributes:
        token_ids: sampled ids, the stop token included.
        logprobs: nats, one for each id, of logits / temperature, under the weights that sampled it.
        finish_reason: `abort` is a cut answer, by an activation or an abort: the episode goes on from its tokens.
        runs: weight versions in order; they cover the tokens. Empty when there is no token.
        one_version: the server named one version for the whole answer, the newest, instead of spans.
        experts: of the tokens that the server read, if it was asked.
        num_cached: tokens of the prompt whose keys and values the server had; 0 where it does not say.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    runs: tuple[VersionRun, ...]
    one_version: bool
    experts: Experts | None = field(default=None, compare=False)
    num_cached: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server says of itself in /model_info."""

    model_path: str
    weight_version: str


@dataclass(frozen=True, slots=True)
class Loads:
    """Requests at a server, summed over its data-parallel ranks."""

    num_running: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class LoaderStatus:
    """What the weight loader inside the engine says it holds; code 0 is the only success.

    `version` is packed, `digest` is of the weights after the last update, `num_changed` counts words.
    """

    code: int
    version: int
    digest: int
    num_changed: int


def parse_answer(body: Json, path: str = "/generate") -> Answer:
    """Check the answer to a single generation request.

    Raises:
        RequestRefused: an abort that carries a 4xx status: the server refused under HTTP 200.
        ServerUnavailable: an abort that carries a 5xx status; ServerBusy for 503.
        MalformedAnswer: ids, logprobs and spans do not fit each other; its reason is what to count it under.
    """
    try:
        return _parsed(body, path)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        # Anything else than these shapes: a worker must leave such a server, not die of it.
        raise MalformedAnswer(
            "shape", f"{path}: the answer is not what it should be ({error!r:.200}); it cannot be used."
        ) from error


def _parsed(body: Json, path: str) -> Answer:
    try:
        meta, token_ids = body["meta_info"], tuple(body["output_ids"])
        finish = meta["finish_reason"]
        kind = finish["type"]
        pairs = meta["output_token_logprobs"] if token_ids or "output_token_logprobs" in meta else []
    except (KeyError, TypeError) as missing:
        raise MalformedAnswer("missing_field", f"{path}: the answer has no {missing}; it cannot be used.") from missing
    if kind not in ("stop", "length", "abort"):
        raise MalformedAnswer("finish_reason", f"{path}: finish_reason is {finish!r}; expected stop, length or abort.")
    if kind == "abort":
        raise_if_refused(finish, path)
    token_ids, logprobs = _check_tokens(token_ids, pairs or (), finish, path)
    runs, one_version = _version_runs(meta, len(token_ids), path)
    cached = meta.get("cached_tokens")
    num_cached = max(0, cached) if type(cached) is int else 0
    return Answer(token_ids, logprobs, kind, runs, one_version, num_cached=num_cached)


def parse_status(values: Sequence[float]) -> LoaderStatus:
    """The loader's six numbers: code, branch, number, digest (high and low 32 bits), changed words."""
    if not isinstance(values, Sequence) or len(values) != 6:
        raise MalformedAnswer("status", f"the weight loader's status is {str(values)[:200]}, expected six numbers.")
    try:
        code, branch, number, high, low, changed = (int(value) for value in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedAnswer(
            "status", f"the weight loader's status {str(values)[:200]} is not six numbers."
        ) from error
    return LoaderStatus(code, branch << 32 | number, high << 32 | low, changed)


def vocab_size(model_dir: Path) -> int:
    """Number of token ids the model knows. An id at or above it kills a CPU server, so clients check before sending.

    Raises:
        PreflightError: the directory has no readable config.json with a vocab_size.
    """
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text())
        return int(config["vocab_size"] if "vocab_size" in config else config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PreflightError(
            f"{path} gives no vocab_size ({error!r}): token ids could not be checked before they are sent, and one "
            "that the model does not know kills a server. Set model.path to a complete Hugging Face model directory."
        ) from error


def raise_if_refused(finish: Json, path: str) -> None:
    """Raise what an abort under HTTP 200 stands for, if it carries a status."""
    status = int(finish.get("status_code") or 0)
    if status:
        message = f"{path}: aborted with status {status}: {str(finish.get('message'))[:200]}"
        if status == 503:
            raise ServerBusy(message)
        raise RequestRefused(message) if 400 <= status < 500 else ServerUnavailable(message)


def _check_tokens(
    token_ids: tuple[int, ...], pairs: Sequence[Sequence[Any]], finish: Json, path: str
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if len(pairs) == len(token_ids) + 1 and finish["type"] == "stop" and pairs[-1][1] == finish.get("matched"):
        # Some servers trim the stop token from the ids. It was sampled and has a logprob: without it the model would
        # never learn to stop.
        token_ids = (*token_ids, pairs[-1][1])
    if len(pairs) != len(token_ids):
        raise MalformedAnswer(
            "mismatched_logprobs",
            f"{path}: {len(token_ids)} ids but {len(pairs)} logprobs; pairing them would train tokens with the "
            "probabilities of others, so the answer is dropped.",
        )
    if not set(map(type, token_ids)) <= {int} or min(token_ids, default=0) < 0:  # 1.0 == True == 1, and none is an id
        raise MalformedAnswer("shape", f"{path}: output_ids are {str(token_ids)[:200]}, expected integers from 0.")
    logprobs = tuple(pair[0] for pair in pairs)
    if not set(map(type, logprobs)) <= {int, float, type(None)}:
        raise MalformedAnswer("shape", f"{path}: logprobs are {str(logprobs)[:200]}, expected numbers.")
    for index, logprob in enumerate(logprobs):
        if logprob is None or not math.isfinite(logprob):
            raise MalformedAnswer(
                "logprob_not_finite", f"{path}: the logprob of token {index} is {logprob!r}; the answer is dropped."
            )
    for index, (token_id, pair) in enumerate(zip(token_ids, pairs, strict=True)):
        if token_id != pair[1]:
            raise MalformedAnswer(
                "mismatched_logprobs",
                f"{path}: token {index} is id {token_id} but its logprob is of id {pair[1]}; the answer is dropped.",
            )
    return token_ids, logprobs


def _version_runs(meta: Json, num_tokens: int, path: str) -> tuple[tuple[VersionRun, ...], bool]:
    if num_tokens == 0:
        return (), False
    spans = meta.get("weight_versions")
    if not spans:
        return (VersionRun(str(meta.get("weight_version") or ""), num_tokens),), True
    position, runs = 0, []
    for span in spans:
        if type(span["start"]) is not int or type(span["end"]) is not int:  # 3.0 == 3, and is no number of tokens
            raise MalformedAnswer("spans", f"{path}: weight_versions {str(spans)[:200]} begin or end at no token.")
        if span["start"] != position or span["end"] < position:
            raise MalformedAnswer("spans", f"{path}: weight_versions {spans!r} are not contiguous from 0.")
        if span["end"] > position:
            runs.append(VersionRun(str(span["version"]), span["end"] - position))
        position = span["end"]
    if position != num_tokens:
        raise MalformedAnswer("spans", f"{path}: weight_versions {spans!r} cover {position} of {num_tokens} tokens.")
    return tuple(runs), False
