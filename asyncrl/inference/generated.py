"""An answer as a worker gets it."""

from dataclasses import dataclass, field

from asyncrl.inference.experts import Experts
from buffer import Span


@dataclass(frozen=True, slots=True)
class Generated:
    """An answer whose tokens are placed: each span has its version and the digest that a server acknowledged for it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    spans: tuple[Span, ...]
    server: str
    experts: Experts | None = field(default=None, compare=False)
    """Of the tokens that the server read, if it was asked: see asyncrl.data.routed_experts."""
