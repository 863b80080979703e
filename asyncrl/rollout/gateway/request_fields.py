"""Reads the fields of a request body; what is wrong becomes an error that names the field, what was found and expected.

A field that is null counts as absent, as in the protocols. A field that no table of its protocol knows is refused: it
may ask for something that the answer would silently lack.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl.data.values import Json, excerpt, kind
from asyncrl.rollout.gateway.conversation import ProtocolError

Object = Mapping[str, Json]
MAX_STOPS = 16


@dataclass(frozen=True)
class Refused:
    """A field that may only have values that change nothing: those `allowed`. `why` ends the error otherwise."""

    allowed: tuple[Json, ...]
    why: str


@dataclass(frozen=True)
class FieldTable:
    """What a protocol does with each field of its requests.

    Attributes:
        read: they have their effect.
        ignored: they change nothing that the client could not see, and are not looked at.
        refused: anything but what changes nothing is an error.
    """

    read: frozenset[str]
    ignored: frozenset[str]
    refused: Mapping[str, Refused]

    def check(self, body: Object) -> None:
        """Raises ProtocolError for a field that is refused or unknown."""
        for name, value in body.items():
            if name in self.read or name in self.ignored or value is None:
                continue
            rule = self.refused.get(name)
            if rule is None:
                raise invalid(
                    f"{excerpt(name)}: this gateway knows no such field, so the answer would not be what it asks for. "
                    "Leave it out; docs/gateway-protocols.md lists the fields that have an effect and those that are "
                    "ignored."
                )
            if value not in rule.allowed:
                raise invalid(f"{name}: found {_shown(value)}. {rule.why}")


def names(text: str) -> frozenset[str]:
    """The words of a text, for field tables."""
    return frozenset(text.split())


def invalid(message: str) -> ProtocolError:
    """The error of a request that can never be answered as it is."""
    return ProtocolError(400, "invalid_request", message)


def unexpected(path: str, found: Json, expected: str) -> ProtocolError:
    """The error of a field with the wrong kind of value."""
    return invalid(f"{path}: found {_shown(found)}, expected {expected}.")


def read_object(value: Json, path: str) -> dict[str, Json]:
    """An object; raises ProtocolError for anything else, as those below."""
    if not isinstance(value, dict):
        raise unexpected(path, value, "an object")
    return value


def read_list(value: Json, path: str) -> list[Json]:
    """A list."""
    if not isinstance(value, list):
        raise unexpected(path, value, "a list")
    return value


def read_objects(value: Json, path: str) -> list[tuple[str, dict[str, Json]]]:
    """A list of objects, each with its path; absent: none."""
    items = [] if value is None else read_list(value, path)
    return [(f"{path}[{index}]", read_object(item, f"{path}[{index}]")) for index, item in enumerate(items)]


def read_text(value: Json, path: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise unexpected(path, value, "a string")
    return value


def read_name(value: Json, path: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise unexpected(path, value, "a string that is not empty")
    return value


def read_flag(value: Json, path: str) -> bool:
    """A boolean; absent: False."""
    if value is not None and not isinstance(value, bool):
        raise unexpected(path, value, "true or false")
    return bool(value)


def read_number(value: Json, path: str, low: float, high: float) -> float | None:
    """A finite number from `low` to `high`; absent: None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise unexpected(path, value, f"a number from {low:g} to {high:g}")
    return float(value)


def read_count(value: Json, path: str) -> int | None:
    """An integer of at least 1; absent: None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise unexpected(path, value, "an integer of at least 1")
    return value


def read_stops(value: Json, path: str) -> tuple[str, ...]:
    """A text or a list of texts that end an answer."""
    texts = [value] if isinstance(value, str) else [] if value is None else read_list(value, path)
    if len(texts) > MAX_STOPS:
        raise invalid(f"{path}: found {len(texts)} texts, expected at most {MAX_STOPS}.")
    return tuple(read_name(text, f"{path}[{index}]") for index, text in enumerate(texts))


def read_parts(value: Json, path: str, kinds: tuple[str, ...], joint: str) -> str:
    """Text, or a list of parts `{"type": one of kinds, "text": ...}` joined with `joint`; absent: empty."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise unexpected(path, value, "a string or a list of parts")
    return joint.join(_part_text(part, at, kinds) for at, part in read_objects(value, path))


def _part_text(part: Object, path: str, kinds: tuple[str, ...]) -> str:
    if part.get("type") not in kinds:
        raise invalid(
            f"{path}.type: found {_shown(part.get('type'))}, expected {' or '.join(kinds)}. "
            "The policy reads text only; leave images, audio, files and the tools of other servers out."
        )
    return read_text(part.get("text"), f"{path}.text")


def check_turn(messages: list[dict[str, Json]], path: str) -> tuple[dict[str, Json], ...]:
    """The messages, if the policy can answer them: there are some, and the last one is not its own."""
    if not messages:
        raise invalid(f"{path}: found no message, expected at least one.")
    if messages[-1]["role"] == "assistant":
        raise invalid(
            f"{path}: the last message is the assistant's, expected the user's or a tool's. An answer cannot be begun "
            "for the policy: the beginning would not be its own, and it could not be trained on."
        )
    return tuple(messages)


def _shown(value: Json) -> str:
    """A value in an error: short ones as they are, others by their kind."""
    if isinstance(value, str):
        return f'"{excerpt(value)}"'
    return excerpt(json.dumps(value)) if isinstance(value, int | float) else kind(value)
