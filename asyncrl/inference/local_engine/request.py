"""One sequence being generated: what was asked, what came out, under which weight versions, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.inference.local_engine.sampling_params import SamplingParams

FinishReason = Mapping[str, object]
"""As on the wire: {"type": "stop", "matched": id | str}, {"type": "length", "length": n}, {"type": "abort", ...}."""

QUEUE_ABORT = "Abort in waiting queue"
"""SGLang's message for a request aborted before it ran, or while retracted."""


class RequestRefused(ValueError):
    """A request this server does not accept.

    `status` is the HTTP status; `bare` asks for SGLang's `{"error": "text"}` instead of `{"error": {"message": ...}}`.
    """

    def __init__(self, message: str, *, status: int = 400, bare: bool = False) -> None:
        super().__init__(message)
        self.status, self.bare = status, bare


@dataclass(frozen=True)
class VersionSpan:
    """A run of output tokens [start, end) sampled under one weight version."""

    version: str
    start: int
    end: int


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. The first block is set at admission and never changes; the engine thread owns the rest.

    `logprob_start` is the prompt position from which the prompt's own logprobs are wanted, None for none; `num_top` is
    how many of the likeliest tokens are wanted with each of them.
    `stream_every` is the number of tokens between two progress reports, 0 for none.
    `prompt_logprobs` and, if asked for, `prompt_top` align with prompt[logprob_start:]; their first entry is None, as
    SGLang's.
    """

    rid: str
    prompt: list[int]
    params: SamplingParams
    extra_key: str = ""
    logprob_start: int | None = None
    stream_every: int = 0
    num_top: int = 0

    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top: list[list[tuple[float, int]] | None] = field(default_factory=list)
    version_marks: list[tuple[int, str]] = field(default_factory=list)
    cached_tokens: int = 0
    num_retractions: int = 0
    finish: FinishReason | None = None
    ordinal: int = 0

    @property
    def limit(self) -> int:
        """Most tokens that may be sampled; the admission check has resolved an absent one."""
        assert self.params.max_new_tokens is not None
        return self.params.max_new_tokens

    def mark_version(self, version: str, num_output: int) -> None:
        """From output token `num_output` on, tokens are sampled under `version`."""
        if not self.version_marks or self.version_marks[-1][1] != version:
            self.version_marks.append((num_output, version))

    def spans(self, num_output: int) -> list[VersionSpan]:
        """Contiguous spans that cover the output; one empty span when there is no output, as SGLang gives.

        A mark that no token followed leaves no span.
        """
        spans: list[VersionSpan] = []
        ends = [start for start, _ in self.version_marks[1:]] + [num_output]
        for (start, version), end in zip(self.version_marks, ends, strict=True):
            if end <= start:
                continue
            if spans and spans[-1].version == version:
                spans[-1] = VersionSpan(version, spans[-1].start, end)
            else:
                spans.append(VersionSpan(version, start, end))
        if not spans and self.version_marks:
            spans.append(VersionSpan(self.version_marks[-1][1], 0, num_output))
        return spans


def aborted(message: str = "Aborted", status: int | None = None, kind: str | None = None) -> FinishReason:
    """The finish reason of a request that ran and was aborted; a status makes the HTTP answer an error."""
    return {"type": "abort", "message": message, "status_code": status, "err_type": kind}
