"""One context of an episode: token ids with, per token, whether the policy sampled it, its logprob and its version."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from buffer.errors import TrajectoryError
from buffer.json_safe import integer, short, text

_TOP = 1 << 64
_EMPTY: Mapping[str, object] = MappingProxyType({})

COLUMN_DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of sampled tokens (mask True), in order, that were drawn under one version of the weights.

    `digest` is that of the weights, as the server acknowledged it.
    Raises:
        TrajectoryError: a number does not fit into 64 unsigned bits, or there is no token.
    """

    version: int
    digest: int
    num_tokens: int

    def __post_init__(self) -> None:
        if type(self.version) is type(self.digest) is type(self.num_tokens) is int and (
            0 <= self.version < _TOP and 0 <= self.digest < _TOP and 0 < self.num_tokens < _TOP
        ):
            return
        for name in ("version", "digest", "num_tokens"):
            value = integer(f"Span.{name}", getattr(self, name))
            object.__setattr__(self, name, value)
            if not 0 <= value < _TOP:
                raise TrajectoryError(f"Span.{name} = {value} does not fit into 64 unsigned bits.")
        if self.num_tokens < 1:
            raise TrajectoryError(
                "Span.num_tokens = 0: a span without tokens would count a version that sampled nothing."
            )


class ComparedByContent:
    """Equality for dataclasses that hold arrays: the generated one asks an array for its truth and fails."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))  # type: ignore[arg-type]  # subclasses are dataclasses

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash


@dataclass(frozen=True, slots=True, eq=False)
class Row(ComparedByContent):
    """One context of T tokens.

    token_ids: [T] uint32. mask: [T] bool, True where the policy sampled the token. logprobs: [T] float32, nats, of
    the sampled tokens under the weights that sampled them, 0 elsewhere. columns: further per-token arrays by name,
    [T, ...]. Raises:
        TrajectoryError: shape, dtype or value of a field is wrong, or the spans do not cover the sampled tokens.
    """

    token_ids: npt.NDArray[np.uint32]
    mask: npt.NDArray[np.bool_]
    logprobs: npt.NDArray[np.float32]
    spans: tuple[Span, ...]
    num_prompt_tokens: int
    columns: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        num_tokens = (
            len(self.token_ids) if isinstance(self.token_ids, np.ndarray) and self.token_ids.ndim == 1 else None
        )
        for name, dtype in (("token_ids", np.uint32), ("mask", np.bool_), ("logprobs", np.float32)):
            _check_array(f"Row.{name}", getattr(self, name), np.dtype(dtype), num_tokens)
        if not num_tokens:
            raise TrajectoryError("Row.token_ids is empty: a row holds at least the tokens of its prompt.")
        self._check_counts(num_tokens)
        if not np.isfinite(self.logprobs).all():
            where = int(np.flatnonzero(~np.isfinite(self.logprobs))[0])
            raise TrajectoryError(
                f"Row.logprobs[{where}] = {self.logprobs[where]} is not finite: every importance weight from it "
                "would be."
            )
        if self.logprobs[~self.mask].any():
            raise TrajectoryError(
                "Row.logprobs is not 0 where Row.mask is False: a token that was not sampled has no logprob."
            )
        columns = {}
        for key, value in self.columns.items():
            name = text("Row.columns key", key)
            columns[name] = _column(name, value, num_tokens)
        object.__setattr__(self, "columns", MappingProxyType(columns))

    @classmethod
    def of_sound_arrays(
        cls,
        token_ids: npt.NDArray[np.uint32],
        mask: npt.NDArray[np.bool_],
        logprobs: npt.NDArray[np.float32],
        spans: tuple[Span, ...],
        num_prompt_tokens: int,
    ) -> "Row":
        """A row whose arrays were checked together with those of others; only its counts are checked here.

        Raises:
            TrajectoryError: the spans do not cover the sampled tokens, or the prompt is longer than the row.
        """
        row = object.__new__(cls)
        put = object.__setattr__
        put(row, "token_ids", token_ids)
        put(row, "mask", mask)
        put(row, "logprobs", logprobs)
        put(row, "spans", spans)
        put(row, "num_prompt_tokens", num_prompt_tokens)
        put(row, "columns", _EMPTY)
        in_row = type(num_prompt_tokens) is int and 0 <= num_prompt_tokens <= len(token_ids)
        if in_row and row.num_sampled == np.count_nonzero(mask):
            return row
        return cls(token_ids, mask, logprobs, spans, num_prompt_tokens)  # says what is wrong

    def _check_counts(self, num_tokens: int) -> None:
        object.__setattr__(self, "num_prompt_tokens", integer("Row.num_prompt_tokens", self.num_prompt_tokens))
        if not 0 <= self.num_prompt_tokens <= num_tokens:
            raise TrajectoryError(
                f"Row.num_prompt_tokens = {self.num_prompt_tokens} must be in 0..{num_tokens}, the row's tokens."
            )
        if self.mask[: self.num_prompt_tokens].any():
            raise TrajectoryError(
                f"Row.mask marks a token of the prompt (the first {self.num_prompt_tokens}) as sampled by the policy."
            )
        self._check_spans()

    def _check_spans(self) -> None:
        object.__setattr__(self, "spans", tuple(self.spans))
        if not all(isinstance(span, Span) for span in self.spans):
            raise TrajectoryError("Row.spans must hold Span objects.")
        covered, sampled = sum(span.num_tokens for span in self.spans), int(np.count_nonzero(self.mask))
        if covered != sampled:
            raise TrajectoryError(
                f"Row.spans cover {covered} tokens, Row.mask marks {sampled} as sampled: a token without a version "
                "would count as fresh."
            )

    @property
    def num_sampled(self) -> int:
        return sum([span.num_tokens for span in self.spans])


def _check_array(name: str, value: object, dtype: np.dtype[np.generic], num_tokens: int | None) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1 or len(value) != num_tokens:
        found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TrajectoryError(f"{name} must be {dtype} [{'T' if num_tokens is None else num_tokens}], found {found}.")


def _column(name: str, value: object, num_tokens: int) -> npt.NDArray[np.generic]:
    if (
        not isinstance(value, np.ndarray)
        or value.dtype.name not in COLUMN_DTYPES
        or value.ndim < 1
        or len(value) != num_tokens
    ):
        found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TrajectoryError(
            f"Row.columns.{short(name)} must be an array [{num_tokens}, ...] of one of {', '.join(COLUMN_DTYPES)}, "
            f"found {found}."
        )
    return value


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return one == other
