"""One turn as protocols ask for it and as it was sampled, in words of no protocol.

The translators (OpenAI's and Anthropic's protocols) turn request bodies into a `TurnRequest` and render a `TurnAnswer`
or a stream of `TurnDelta`; sessions know nothing else of them.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from asyncrl.data.values import Json

FinishReason = Literal["stop", "length", "tool_calls"]
ErrorType = Literal["invalid_request", "authentication", "not_found", "conflict", "too_large", "rate_limit", "server"]


class ProtocolError(Exception):
    """A request that gets an error instead of an answer; each protocol renders it in its own form.

    Attributes:
        status: of HTTP.
        type: what kind of error, in no protocol's words.
        message: what was found, what was expected, the next step. Holds no secret.
        retry_after_s: when to come back, for 429 and 503.
    """

    def __init__(self, status: int, type: ErrorType, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(status, type, message)
        self.status, self.type, self.message, self.retry_after_s = status, type, message, retry_after_s

    def __str__(self) -> str:
        return f"{self.status} {self.type}: {self.message}"


@dataclass(frozen=True, slots=True)
class AskedSampling:
    """How a request wants its turn sampled; None: as the run does.

    Attributes:
        max_tokens: most tokens of the answer; the run's rollout.max_new_tokens is a limit all the same.
        stop: texts that end the answer and are no part of what is shown of it.
        logprobs: whether the answer is to show each token's logprob.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """What one request asks for.

    Attributes:
        messages: the whole conversation in OpenAI's chat form, oldest first: role and content (a string, or null
            beside tool_calls); an assistant's `reasoning_content` and `tool_calls` (`{"id", "type": "function",
            "function": {"name", "arguments": JSON text}}`); a tool's `tool_call_id`. At least one.
        tools: OpenAI function schemas, `{"type": "function", "function": {...}}`.
        parses_tool_calls: False where the request says that no tool is to be called (tool_choice none).
        shows_usage: whether a stream is to say at its end how many tokens it took, in protocols that ask for it.
        model: the name that the request gave.
    """

    messages: tuple[Mapping[str, Json], ...]
    tools: tuple[Mapping[str, Json], ...] = ()
    sampling: AskedSampling = AskedSampling()
    stream: bool = False
    model: str = ""
    parses_tool_calls: bool = True
    shows_usage: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of an answer.

    Attributes:
        id: given by the gateway; the tool's message refers to it.
        arguments: JSON text, as the protocols want it.
    """

    id: str
    name: str
    arguments: str

    def to_json(self) -> dict[str, Json]:
        """In OpenAI's chat form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """What was sampled for one request.

    Attributes:
        id: of the answer, letters and digits; protocols put their prefix before it.
        model: name that the gateway serves the policy under.
        weight_version: label of the newest version that a token of it was sampled under; empty without a token.
        created_s: seconds since the epoch.
        text: what the model said, without reasoning and calls.
        finish_reason: `tool_calls` when the turn ended with calls.
        token_ids, logprobs: the sampled tokens and their logprobs in nats, the end token included.
        token_texts: the text of each token, if the request asked for logprobs; else empty.
        prompt_tokens: tokens that the model read before it.
        stop_text: which of the request's stop texts ended it; None: none of them did.
    """

    id: str
    model: str
    weight_version: str
    created_s: int
    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: int
    token_texts: tuple[str, ...] = field(default=())
    stop_text: str | None = None

    @property
    def completion_tokens(self) -> int:
        """Tokens that were sampled."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """A piece of a call in a stream.

    Attributes:
        index: of the call in the answer, from 0. The pieces of one call come together, the calls in order.
        id, name: in the first piece of a call; empty in the others.
        arguments: the next piece of the JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class TurnStart:
    """What is known of an answer before its first token; each field is that of the TurnAnswer to come."""

    id: str
    model: str
    created_s: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TurnDelta:
    """A piece of an answer in a stream: exactly one of these is set.

    The pieces of text, of reasoning and of each call's arguments, joined, are those of the answer. Reasoning comes
    before text, text before calls.

    Attributes:
        start: in the first piece and in no other: protocols name an answer before they show any of it.
        answer: the whole of it, in the last piece and in no other.
    """

    start: TurnStart | None = None
    text: str = ""
    reasoning: str = ""
    tool_call: ToolCallPiece | None = None
    answer: TurnAnswer | None = None


class Translator(Protocol):
    """A protocol. In openai_chat, openai_responses, anthropic_messages; held to tests/contract/test_translators.py."""

    @property
    def path(self) -> str:
        """Where its requests are posted to, such as /v1/chat/completions."""
        ...

    def parse(self, body: Mapping[str, Json]) -> TurnRequest:
        """Read a request body.

        Raises:
            ProtocolError: something in it is wrong or is not supported.
        """
        ...

    def render(self, answer: TurnAnswer, request: TurnRequest) -> Mapping[str, Json]:
        """The body of the reply to a request without `stream`."""
        ...

    def stream(self, deltas: AsyncIterator[TurnDelta], request: TurnRequest) -> AsyncIterator[bytes]:
        """The reply to a request with `stream`: server-sent events.

        A ProtocolError that `deltas` raises becomes an error event, the stream's last.
        """
        ...

    def render_error(self, error: ProtocolError) -> Mapping[str, Json]:
        """The body of an error reply."""
        ...
