"""What is wrong with a configuration, in words: the key, its value, what is allowed, and the nearest known key."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from asyncrl.errors import ConfigError
from asyncrl.load_config import foreign_keys
from asyncrl.load_config.keys import (
    accepts,
    accepts_null,
    allowed,
    is_list,
    known_keys,
    known_sections,
)
from asyncrl.load_config.secrets import is_secret, redact
from asyncrl.load_config.yaml_reader import Json, Problem
from asyncrl.load_config.yaml_writer import scalar

MAX_SHOWN = 80
LIKE_ENOUGH = 0.7  # below this, a suggestion is more often noise than help
SIBLING_BONUS = 0.05


def explain(error: ValidationError, where: Callable[[str], str]) -> list[Problem]:
    """One problem for each of pydantic's errors, one for each key of an unknown section.

    Args:
        error: from Config.model_validate_json.
        where: dotted key -> where it was set, for example `configs/a.yaml line 3`.
    """
    problems: dict[tuple[str, str], Problem] = {}
    for details in error.errors(include_url=False):
        for key, text in _texts(details):
            problems.setdefault((key, text), Problem(key, where(key), text))
    return list(problems.values())


def refusal(problems: list[Problem]) -> ConfigError:
    """The error that lists all problems."""
    lines = [
        f"{problem.key}{f' ({problem.where})' if problem.where else ''}: {problem.text}"
        if problem.key
        else f"{f'{problem.where}: ' if problem.where else ''}{problem.text}"
        for problem in problems
    ]
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError(f"{len(lines)} problems in the configuration:\n" + "\n".join(f"  {line}" for line in lines))


def unknown(key: str) -> str:
    """What to say about a key that does not exist: another system's name for ours, or the nearest one."""
    if (answer := foreign_keys.answer(key)) is not None:
        return answer
    section, _, name = key.rpartition(".")
    elsewhere = sorted((known for known in known_keys() if _last(known) == name), key=lambda known: known.count("."))
    if elsewhere:
        return f"unknown key; did you mean {' or '.join(elsewhere[:3])}?"
    siblings = list(known_sections()[section].model_fields) if section in known_sections() else []
    nearness = {known: max(_likeness(name, _last(known)), _likeness(key, known)) for known in known_keys()}
    # A slip within the right section is likelier than the same slip in another one.
    nearness |= {
        f"{section}.{sibling}" if section else sibling: _likeness(name, sibling) + SIBLING_BONUS for sibling in siblings
    }
    nearest = max(nearness, key=nearness.__getitem__)
    if nearness[nearest] >= LIKE_ENOUGH:
        return f"unknown key; did you mean {nearest}?"
    if siblings and section:
        return f"unknown key; {section} has the keys {', '.join(siblings)}"
    return f"unknown key; there are the sections {', '.join(known_sections()[''].model_fields)}"


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _texts(details: ErrorDetails) -> Iterator[tuple[str, str]]:
    """Dotted key and text of one of pydantic's errors."""
    key = _dotted(details["loc"])
    if details["type"] == "extra_forbidden":
        for leaf in _leaves(key, details["input"]):
            yield leaf, unknown(leaf)
    elif details["type"] in ("value_error", "assertion_error"):
        # Our own validators name keys, values and what to do; pydantic puts "Value error, " before it.
        text = str(details["ctx"]["error"]) if "ctx" in details else details["msg"]
        yield "" if text.startswith(key) else key, text
    else:
        yield key, _wrong_value(details)


def _wrong_value(details: ErrorDetails) -> str:
    """`= "8": must be a whole number >= 1, not text; remove the quotes`."""
    field = _field(details["loc"])
    value = details["input"]
    if field is None:
        if (section := known_sections().get(_dotted(details["loc"]))) is not None:
            hint = " Write its keys below it, or leave it out." if value is None else ""
            return f"must be a section with the keys {', '.join(section.model_fields)}, not {_shown(value)}.{hint}"
        return details["msg"]
    must = f"must be {allowed(field)}"
    if details["type"] == "missing":
        return f"an entry is missing; it {must}"
    if is_secret(field):
        return f"{must}, not {_kind(value)} (the value is a secret and is not shown)"
    hint = _hint(field, value)
    return f"{must}, not {_shown(value)}{f'. {hint}' if hint else ''}"


def _hint(field: FieldInfo, value: Any) -> str:  # Any: whatever was written
    """How to write what was probably meant."""
    if value is None and not accepts_null(field):
        return "Leave the key out for its default."
    if is_list(field) and not isinstance(value, list):
        return f"Write it in brackets: [{_shown(value)}]." if not isinstance(value, dict) else ""
    if isinstance(value, str):
        if accepts(field, bool) and value.lower() in ("yes", "no", "on", "off", "y", "n"):
            return f"Write {'true' if value.lower() in ('yes', 'on', 'y') else 'false'}."
        if accepts(field, int) or accepts(field, float):
            return "Write a plain number, without quotes, units or leading zeros."
    if isinstance(value, bool | int | float) and accepts(field, str):
        return f'To mean the text, quote it: "{_shown(value)}".'
    if isinstance(value, float) and value.is_integer() and accepts(field, int):
        return f"Write {int(value)}."
    return ""


def _field(location: tuple[int | str, ...]) -> FieldInfo | None:
    """The field at a location, or the list around it."""
    names = [part for part in location if isinstance(part, str)]
    return known_keys().get(".".join(names))


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _leaves(key: str, value: Json) -> Iterator[str]:
    """The keys of an unknown section, so that each is answered; the key itself if it is no section."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key


def _shown(value: Any) -> str:  # Any: whatever was written
    if isinstance(value, dict):
        return "a section"
    text = f'"{redact(value)}"' if isinstance(value, str) else scalar(redact(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _kind(value: Any) -> str:  # Any: whatever was written
    names: Mapping[type, str] = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "this text",
        list: "a list",
        dict: "a section",
    }
    return names.get(type(value), "null")
