"""The keys of the configuration tree: their types in words, defaults and descriptions, read off the classes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from asyncrl.config import Config
from asyncrl.load_config.secrets import is_secret, masked, redact
from asyncrl.load_config.yaml_writer import scalar

NAMES: Mapping[object, tuple[str, str]] = {
    bool: ("true or false", "booleans"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    Path: ("a path", "paths"),
    SecretStr: ("text (secret)", "secrets"),
}


@dataclass(frozen=True)
class Key:
    """One key, as --help and the reference show it.

    Attributes:
        name: dotted, `rollout.n`.
        type: what may be written, in words: `a whole number >= 1`.
        default: as YAML.
        description: the text below the field.
    """

    name: str
    type: str
    default: str
    description: str


def describe(section: type[BaseModel] = Config) -> list[Key]:
    """Every key of a tree, in its order; keys of optional sections included."""
    return [
        Key(name, allowed(field), default_of(field), " ".join((field.description or "").split()))
        for name, field in fields_of(section)
    ]


@cache
def known_keys() -> Mapping[str, FieldInfo]:
    """Dotted key -> field, for every value (not section) of the tree."""
    return dict(fields_of(Config))


@cache
def known_sections() -> Mapping[str, type[BaseModel]]:
    """Dotted name -> class, for every section of the tree; "" is the whole."""
    return {"": Config, **dict(_sections(Config, ""))}


def fields_of(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Dotted key and field of every value below a section, depth first."""
    for name, field in section.model_fields.items():
        inner = section_class(field)
        if inner is None:
            yield prefix + name, field
        else:
            yield from fields_of(inner, f"{prefix}{name}.")


def section_class(field: FieldInfo) -> type[BaseModel] | None:
    """The section's class if the field holds one, also an optional one; None for a value."""
    for kind in _alternatives(field.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def allowed(field: FieldInfo) -> str:
    """What may be written for the field, in words: `a number > 0, or null`."""
    if (section := section_class(field)) is not None:
        return f"a section with the keys {', '.join(section.model_fields)}"
    limits = list(field.metadata)
    words = []
    for kind in _alternatives(field.annotation):
        if kind is not NoneType:
            kind, inner = _unwrapped(kind)
            words.append(" ".join([_name(kind), *_limits([*inner, *limits])]))
    text = " or ".join(words)
    return f"{text}, or null" if accepts_null(field) else text


def accepts_null(field: FieldInfo) -> bool:
    """Whether null is a value of the field."""
    return NoneType in _alternatives(field.annotation)


def accepts(field: FieldInfo, kind: type) -> bool:
    """Whether the field has values of the Python type `kind`, in a list also counted."""
    return any(_unwrapped(option)[0] is kind for option in _alternatives(field.annotation))


def is_list(field: FieldInfo) -> bool:
    """Whether the field holds a list."""
    return any(get_origin(_unwrapped(option)[0]) is tuple for option in _alternatives(field.annotation))


def default_of(field: FieldInfo) -> str:
    """The default as it would be written in YAML."""
    return scalar(shown_value(field, field.get_default(call_default_factory=True)))


def shown(section: BaseModel) -> dict[str, Any]:  # Any: JSON has no narrower name
    """The JSON form of a section with its secrets masked: for people, logs and files that others may read."""
    return {name: shown_value(field, getattr(section, name)) for name, field in type(section).model_fields.items()}


def shown_value(field: FieldInfo, value: Any) -> Any:  # Any: a field may hold anything that pydantic knows
    """The JSON form of one field's value, masked if it is a secret."""
    if isinstance(value, BaseModel):
        return shown(value)
    if isinstance(value, SecretStr):
        return masked(value.get_secret_value())
    if isinstance(value, str) and is_secret(field):
        return masked(value)
    return redact(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return shown(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _sections(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in section.model_fields.items():
        inner = section_class(field)
        if inner is not None:
            yield prefix + name, inner
            yield from _sections(inner, f"{prefix}{name}.")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _unwrapped(kind: Any) -> tuple[Any, list[Any]]:
    """The type inside Annotated[...], and its constraints."""
    if get_origin(kind) is not Annotated:
        return kind, []
    inner, *notes = get_args(kind)
    limits = [limit for note in notes for limit in (note.metadata if isinstance(note, FieldInfo) else [note])]
    return inner, limits


def _name(kind: Any, *, many: bool = False) -> str:
    if get_origin(kind) is Literal:
        choices = ", ".join(str(choice) for choice in get_args(kind))
        return f"values of {choices}" if many else f"one of {choices}"
    if get_origin(kind) is tuple:
        items = get_args(kind)
        if len(items) == 2 and items[1] is Ellipsis:
            return f"a list of {_name(_unwrapped(items[0])[0], many=True)}"
        return f"a list of {len(items)} {_name(_unwrapped(items[0])[0], many=True)}"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"{'sections' if many else 'a section'} with the keys {', '.join(kind.model_fields)}"
    name: str = getattr(kind, "__name__", str(kind))
    return NAMES.get(kind, (name, name))[many]


def _limits(limits: list[Any]) -> list[str]:
    """`>= 1`, `< 10`, `matching ...`."""
    signs = {annotated_types.Ge: "ge", annotated_types.Gt: "gt", annotated_types.Le: "le", annotated_types.Lt: "lt"}
    symbols = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    texts = []
    for limit in limits:
        if type(limit) in signs:
            name = signs[type(limit)]
            texts.append(f"{symbols[name]} {getattr(limit, name)}")
        elif (pattern := getattr(limit, "pattern", None)) is not None:
            texts.append(f"matching {pattern}")
        elif isinstance(limit, annotated_types.MinLen):
            texts.append(f"of at least {limit.min_length}")
    return [", ".join(texts)] if texts else []
