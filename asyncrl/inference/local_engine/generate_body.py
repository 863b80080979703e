"""The JSON body of /generate -> checked requests, one per sequence; what SGLang refuses is refused with its shapes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from asyncrl.inference.local_engine.request import Request, RequestRefused
from asyncrl.inference.local_engine.sampling_params import SamplingParams

SEED_STEP = 0x9E3779B97F4A7C15
"""What the seeds of n > 1 samples of one prompt differ by."""

MAX_SEQUENCES = 4096
"""Sequences of one body, prompts times samples: `n` has a few bytes and makes as many requests as it says."""

MAX_TOP = 1024
"""Tokens that `top_logprobs_num` may ask for at each position: a small body must not ask for gigabytes."""


@dataclass(frozen=True)
class BodyLimits:
    """What a request is checked against. `encode` is None when the model directory has no tokenizer."""

    vocab: int
    context_length: int
    stream_interval: int
    encode: Callable[[str], list[int]] | None


@dataclass(frozen=True)
class GenerateBody:
    """A parsed body. `is_list`: the answer is a list, because a batch or n > 1 was asked for."""

    requests: tuple[Request, ...]
    is_list: bool
    stream: bool
    return_logprob: tuple[bool, ...]
    text_in_logprobs: bool


def parse(body: object, limits: BodyLimits) -> GenerateBody:
    """Checks a decoded body. Unknown top-level fields are ignored, as SGLang ignores them.

    Raises:
        RequestRefused: see `SamplingParams.parse`; no or both of input_ids and text; ids outside the vocabulary; too
            long for the context; a feature that the local engine does not have.
    """
    if not isinstance(body, Mapping):
        raise RequestRefused(f"the body is {type(body).__name__}, expected a JSON object.")
    _refuse_missing_features(body)
    prompts, is_batch = _prompts(body, limits)
    count = len(prompts)
    raw_params = _spread(body, "sampling_params", count, {}, Mapping)
    params = [SamplingParams.parse(raw) for raw in raw_params if isinstance(raw, Mapping)]
    num_samples = {p.n for p in params}
    if len(num_samples) > 1:
        raise RequestRefused(f"n must be the same for all prompts of a batch, got {sorted(num_samples)}.")
    samples = num_samples.pop()
    if count * samples > MAX_SEQUENCES:
        raise RequestRefused(
            f"{count} prompts times n = {samples} are {count * samples} sequences, one body may ask for "
            f"{MAX_SEQUENCES}. Split it."
        )
    rids = _rids(body.get("rid"), count, is_list=is_batch)
    logprob = [bool(value) for value in _spread(body, "return_logprob", count, False, bool)]
    starts = _spread(body, "logprob_start_len", count, -1, int)
    num_top = _spread(body, "top_logprobs_num", count, 0, int)
    salts, extra_keys = (_spread(body, key, count, "", str) for key in ("cache_salt", "extra_key"))
    stream = bool(body.get("stream"))
    requests = []
    for index, prompt in enumerate(prompts):
        start = _logprob_start(starts[index], prompt) if logprob[index] else None
        for sample in range(samples):
            own = _resolved(params[index], sample, len(prompt), limits)
            requests.append(
                Request(
                    rid=rids[index] if samples == 1 else f"{rids[index]}_{sample}",
                    prompt=prompt,
                    params=own,
                    extra_key=f"{salts[index]}\0{extra_keys[index]}",
                    logprob_start=start,
                    stream_every=(own.stream_interval or limits.stream_interval) if stream else 0,
                    num_top=_num_top(num_top[index], own, limits.vocab),
                )
            )
    wanted = tuple(flag for flag in logprob for _ in range(samples))
    return GenerateBody(
        tuple(requests), is_batch or samples > 1, stream, wanted, bool(body.get("return_text_in_logprobs"))
    )


def _refuse_missing_features(body: Mapping[str, object]) -> None:
    for key in ("token_ids_logprob", "return_hidden_states", "return_routed_experts", "lora_path"):
        value = body.get(key)
        if value and value != [0]:
            raise RequestRefused(f"{key} = {value!r} is not implemented by the local engine: leave it out.")
    for key in ("input_embeds", "image_data", "audio_data", "video_data"):
        if body.get(key) is not None:
            raise RequestRefused(f"{key} is not implemented by the local engine, which takes token ids or text.")


def _prompts(body: Mapping[str, object], limits: BodyLimits) -> tuple[list[list[int]], bool]:
    ids, text = body.get("input_ids"), body.get("text")
    if (ids is None) == (text is None):
        raise RequestRefused("Either text or input_ids should be provided, and not both.")
    if text is not None:
        if limits.encode is None:
            raise RequestRefused("text needs a tokenizer.json in the model directory, which has none: send input_ids.")
        texts = [one for one in (text if isinstance(text, list) else [text]) if isinstance(one, str)]
        if not texts or (isinstance(text, list) and len(texts) != len(text)):
            raise RequestRefused(f"text must be a string or a non-empty list of strings, got {str(text)[:80]!r}.")
        return [_checked(limits.encode(one), limits) for one in texts], isinstance(text, list)
    if not isinstance(ids, list) or not ids:
        raise RequestRefused("input_ids must be a non-empty list of token ids, or of such lists.")
    is_batch = isinstance(ids[0], list)
    return [_checked(one, limits) for one in (ids if is_batch else [ids])], is_batch


def _checked(ids: object, limits: BodyLimits) -> list[int]:
    # type(x) is int: True is no token id, and a set of types is the fastest check of a long list.
    if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int}:
        raise RequestRefused("input_ids must be non-empty lists of integers.")
    if min(ids) < 0 or max(ids) >= limits.vocab:
        at = next(index for index, token in enumerate(ids) if not 0 <= token < limits.vocab)
        raise RequestRefused(
            f"input_ids[{at}] = {ids[at]} is outside the vocabulary [0, {limits.vocab}). The tokenizer does not belong "
            "to this model; a CPU build of SGLang dies of such an id."
        )
    if len(ids) >= limits.context_length:
        raise RequestRefused(
            f"The input ({len(ids)} tokens) is longer than the model's context length ({limits.context_length} tokens)."
        )
    return ids


def _resolved(params: SamplingParams, sample: int, num_prompt: int, limits: BodyLimits) -> SamplingParams:
    """Resolves what depends on the prompt and on the number of the sample."""
    room = limits.context_length - num_prompt
    wanted = room if params.max_new_tokens is None else params.max_new_tokens
    if wanted > room:
        raise RequestRefused(
            f"Requested token count exceeds the model's maximum context length of {limits.context_length} tokens. You "
            f"requested a total of {num_prompt + wanted} tokens: {num_prompt} from the input and {wanted} for the "
            "completion. Reduce the number of tokens in the input or in max_new_tokens."
        )
    if params.stop and limits.encode is None:
        raise RequestRefused("stop strings need a tokenizer, and the model directory has no tokenizer.json.")
    seed = params.sampling_seed
    if sample and seed is not None:
        seed = (seed + sample * SEED_STEP) % 2**64
    if wanted == params.max_new_tokens and seed == params.sampling_seed:
        return params
    return replace(params, max_new_tokens=wanted, sampling_seed=seed)


def _logprob_start(value: object, prompt: Sequence[int]) -> int | None:
    if not isinstance(value, int) or value < -1 or value > len(prompt):
        raise RequestRefused(f"logprob_start_len must be in [-1, {len(prompt)}], got {value!r}.")
    return None if value == -1 or value == len(prompt) else value


def _num_top(value: object, params: SamplingParams, vocab: int) -> int:
    most = min(vocab, MAX_TOP)
    if type(value) is not int or not 0 <= value <= most:
        raise RequestRefused(f"top_logprobs_num must be in [0, {most}], got {value!r}.")
    if value and params.max_new_tokens != 0:
        raise RequestRefused(
            f"top_logprobs_num = {value} is implemented by the local engine for scoring a prompt only: set "
            f"max_new_tokens to 0 (got {params.max_new_tokens}), or leave it out."
        )
    return value


def _spread(
    body: Mapping[str, object], key: str, count: int, default: object, kind: type | type[Mapping[object, object]]
) -> list[object]:
    """A field that may be one value for all prompts or a list with one per prompt."""
    value = body.get(key)
    if value is None:
        value = default
    values = list(value) if isinstance(value, list) else [value] * count
    if len(values) != count:
        raise RequestRefused(f"{key} has {len(values)} entries for {count} prompts.")
    if not all(isinstance(one, kind) for one in values):
        raise RequestRefused(f"{key} must be {kind.__name__}, or a list with one per prompt; got {str(value)[:80]}.")
    return values


def _rids(value: object, count: int, *, is_list: bool) -> list[str]:
    if value is None:
        return [uuid.uuid4().hex for _ in range(count)]
    if isinstance(value, str):
        return [f"{value}_{index}" for index in range(count)] if is_list else [value]
    if not isinstance(value, list) or len(value) != count or not all(isinstance(rid, str) for rid in value):
        raise RequestRefused(f"rid must be a string, or a list with one per prompt ({count}).")
    if len(set(value)) != count:
        raise RequestRefused("Duplicate request IDs detected within the request.")
    return list(value)
