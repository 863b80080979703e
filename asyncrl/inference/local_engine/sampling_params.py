"""The sampling parameters of a request: SGLang's names and defaults, its refusals, and what is not implemented here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from asyncrl.inference.local_engine.request import RequestRefused

GREEDY_BELOW = 1e-6
"""Temperatures below this mean greedy decoding, with logprobs at T = 1."""

MAX_ID = 2**31 - 1
"""No vocabulary is larger. The engine keeps these numbers in arrays; a larger one would end its thread."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "stop_regex": (None, []),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
    "logit_bias": (None, {}),
    "custom_params": (None, {}),
}
"""SGLang's parameters that are accepted only at these values, because this engine does not implement them."""

IGNORED = frozenset({"spaces_between_special_tokens"})
"""Accepted and without effect: they change only how text is spelled."""


@dataclass(frozen=True)
class SamplingParams:
    """Checked parameters of one request. `top_k` 0 means the whole vocabulary."""

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    n: int = 1
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def filters(self) -> bool:
        """Whether the distribution is narrowed before the draw."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @classmethod
    def parse(cls, raw: Mapping[str, object]) -> SamplingParams:
        """From a request's JSON; null means the default, and for max_new_tokens "to the end of the context".

        Raises:
            RequestRefused: an unknown name (400, `{"error": "..."}`), a value of another type or out of range, or a
                parameter that only SGLang implements (400, `{"error": {"message": "..."}}`).
        """
        if not raw.keys() <= _FIELDS:
            _refuse_others(raw)
        checked = cls(
            max_new_tokens=_integer(raw, "max_new_tokens", 0) if "max_new_tokens" in raw else 128,
            min_new_tokens=_integer(raw, "min_new_tokens", 0) or 0,
            temperature=_number(raw, "temperature", 1.0),
            top_p=_number(raw, "top_p", 1.0),
            top_k=_top_k(raw),
            min_p=_number(raw, "min_p", 0.0),
            stop=_strings(raw),
            stop_token_ids=_token_ids(raw),
            ignore_eos=bool(raw.get("ignore_eos")),
            n=1 if raw.get("n") is None else _integer(raw, "n", 1) or 1,
            sampling_seed=_integer(raw, "sampling_seed", None),
            skip_special_tokens=raw.get("skip_special_tokens") is not False,
            no_stop_trim=bool(raw.get("no_stop_trim")),
            stream_interval=_integer(raw, "stream_interval", 1),
        )
        checked._check_ranges()
        return checked

    def _check_ranges(self) -> None:
        if not math.isfinite(self.temperature) or self.temperature < 0:
            raise RequestRefused(f"temperature must be a finite number >= 0, got {self.temperature}.")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestRefused(f"top_p must be in (0, 1], got {self.top_p}.")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestRefused(f"min_p must be in [0, 1], got {self.min_p}.")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise RequestRefused(
                f"min_new_tokens must be in [0, max_new_tokens({self.max_new_tokens})], got {self.min_new_tokens}."
            )


_FIELDS = frozenset(field.name for field in fields(SamplingParams))


def _refuse_others(raw: Mapping[str, object]) -> None:
    """Refuse names that are unknown, and values that only SGLang implements."""
    unknown = [key for key in raw if key not in _FIELDS and key not in NEUTRAL and key not in IGNORED]
    if unknown:
        # The same shape as SGLang's, where the constructor itself refuses the keyword.
        raise RequestRefused(f"unexpected sampling parameter {unknown[0]!r}; known: {sorted(_FIELDS)}", bare=True)
    for key, accepted in NEUTRAL.items():
        if key in raw and raw[key] not in accepted:
            raise RequestRefused(
                f"sampling parameter {key} = {raw[key]!r} is not implemented by the local engine, which accepts "
                f"{accepted[-1]!r} only; leave it out, or serve with SGLang."
            )


def _number(raw: Mapping[str, object], key: str, default: float) -> float:
    value = raw.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestRefused(f"{key} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise RequestRefused(f"{key} is a number of more than 1e308, expected a smaller one.") from None


def _integer(raw: Mapping[str, object], key: str, least: int | None) -> int | None:
    value = raw.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestRefused(f"{key} must be an integer, got {value!r}.")
    if least is not None and value < least:
        raise RequestRefused(f"{key} must be at least {least}, got {value}.")
    return value


def _top_k(raw: Mapping[str, object]) -> int:
    value = _integer(raw, "top_k", None)
    if value is None or value == -1:
        return 0
    if not 1 <= value <= MAX_ID:
        raise RequestRefused(f"top_k must be -1 (disable) or in [1, {MAX_ID}], got {value}.")
    return value


def _strings(raw: Mapping[str, object]) -> tuple[str, ...]:
    value = raw.get("stop")
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise RequestRefused(f"stop must be a non-empty string or a list of them, got {value!r}.")
    return tuple(strings)


def _token_ids(raw: Mapping[str, object]) -> frozenset[int]:
    value = raw.get("stop_token_ids")
    if value is None:
        return frozenset()
    ids = [token for token in value if token is not None] if isinstance(value, list) else None
    if ids is None or not set(map(type, ids)) <= {int}:  # True is no id
        raise RequestRefused(f"stop_token_ids must be a list of integers, got {value!r}.")
    if ids and not -MAX_ID <= min(ids) <= max(ids) <= MAX_ID:
        raise RequestRefused(f"stop_token_ids must be in [{-MAX_ID}, {MAX_ID}], got {value!r}.")
    return frozenset(ids)
