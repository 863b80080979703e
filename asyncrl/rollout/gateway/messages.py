"""Messages compared by what they say, so that a request is known to go on from what was said before.

A harness sends the whole conversation with every request, in its own words for ids, number formats and white space.
What is kept of a message is a digest: no text of a conversation stays in memory.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from asyncrl.data.values import Json

_DIGEST_BYTES = 16
_NOT_SAID = frozenset({"reasoning_content", "reasoning", "tool_calls", "tool_call_id", "content"})


@dataclass(frozen=True, slots=True)
class MessageKey:
    """What a message says, as digests.

    Attributes:
        said: of role, content and calls.
        reasoning: of the reasoning before it; None: the message has none, as most harnesses send it back.
    """

    said: bytes
    reasoning: bytes | None = None

    def repeats(self, earlier: "MessageKey") -> bool:
        """Whether this message of a request is that one of a row. Reasoning that is left out is not another message:
        the row keeps it, since the model is trained on what it saw."""
        return self.said == earlier.said and (self.reasoning is None or self.reasoning == earlier.reasoning)


def keys_of(messages: Iterable[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]]) -> tuple[MessageKey, ...]:
    """The keys of a conversation: one for the tools, which stand before it, and one for each message."""
    return (MessageKey(_digest([dict(tool) for tool in tools])), *map(key_of, messages))


def key_of(message: Mapping[str, Json]) -> MessageKey:
    """The key of one message in OpenAI's chat form.

    Left out are ids of calls, which a harness may draw anew. White space around what an assistant says does not count:
    harnesses trim it.
    """
    role, content = message.get("role"), message.get("content") or ""
    if role == "assistant" and isinstance(content, str):
        content = content.strip()
    others: dict[str, Json] = {
        name: value for name, value in message.items() if name not in _NOT_SAID and value is not None
    }
    listed, reasoning = message.get("tool_calls"), message.get("reasoning_content")
    calls: list[Json] = [_call(call) for call in listed] if isinstance(listed, list) else []
    if isinstance(role, str) and isinstance(content, str) and not calls and len(others) == 1:
        # What most messages are: as text, in a form that no JSON has, at a quarter of the cost.
        said = _digest_text(f"\0{len(role)}:{role}{content}")
    else:
        said = _digest([others, content, calls])
    return MessageKey(said, _digest(reasoning.strip()) if isinstance(reasoning, str) and reasoning else None)


def num_shared(request: Sequence[MessageKey], row: Sequence[MessageKey]) -> int:
    """How many keys, from the first on, a request repeats of a row."""
    for index, (one, other) in enumerate(zip(request, row, strict=False)):
        if not one.repeats(other):
            return index
    return min(len(request), len(row))


def for_template(messages: Sequence[Mapping[str, Json]], start: int = 0) -> list[dict[str, Json]]:
    """The messages from `start` on as chat templates want them: the arguments of calls as objects, no nulls, content
    always there, and a tool's name with its answer."""
    names: dict[str, Json] = {}
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(call, dict) and isinstance(call.get("id"), str) and isinstance(function, dict):
                names[str(call["id"])] = function.get("name")
    return [_plain(message, names) for message in messages[start:]]


def _plain(message: Mapping[str, Json], names: Mapping[str, Json]) -> dict[str, Json]:
    plain: dict[str, Json] = {name: value for name, value in message.items() if value is not None}
    plain.setdefault("content", "")
    calls, of_call = plain.get("tool_calls"), plain.get("tool_call_id")
    if isinstance(calls, list):
        plain["tool_calls"] = [_decoded(call) for call in calls]
    if plain.get("role") == "tool" and isinstance(of_call, str) and names.get(of_call) is not None:
        plain.setdefault("name", names[of_call])
    return plain


def _decoded(call: Json) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    # As text they would be encoded a second time.
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _call(call: Json) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return [function.get("name"), _arguments(function.get("arguments"))]


def _arguments(arguments: Json) -> Json:
    """Arguments as the value that they are JSON of; text that is not JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value: Json = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value


def _digest(value: Json) -> bytes:
    return _digest_text(json.dumps(value, sort_keys=True, separators=(",", ":")))


def _digest_text(text: str) -> bytes:
    # Half of a surrogate pair is a message too, as it is in JSON's escapes.
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
