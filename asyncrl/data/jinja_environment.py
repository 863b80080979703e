"""The sandbox that chat templates run in, equal to the one of transformers.

Source: transformers 5.24, utils/chat_template_utils.py. A template comes with a model from the net, so it gets plain
data only, an immutable sandbox, and no way to store underscore names.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from asyncrl.data.values import Json

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template. Raises jinja2.TemplateError if it is malformed."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(source)


def literal_text(source: str) -> str:
    """Text and string constants of a template, joined by NUL: where its own control tokens stand."""
    tree = ImmutableSandboxedEnvironment(extensions=[_Generation, jinja2.ext.loopcontrols]).parse(source)
    texts = {node.data for node in tree.find_all(nodes.TemplateData)}
    texts |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return "\0".join(sorted(texts))


def template_messages(messages: object) -> list[dict[str, Json]]:
    """Messages as templates expect them: plain, without null keys, reasoning under each of its names."""
    found = []
    for message in _plain_list(messages):
        assert isinstance(message, dict)
        kept: dict[str, Json] = {key: value for key, value in message.items() if value is not None}
        reasoning = next((kept[key] for key in _REASONING_KEYS if key in kept), None)
        if reasoning is not None:
            kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
        found.append(kept)
    return found


def plain_data(value: object) -> Json:
    """A fresh copy of plain values, mappings as dicts and sequences as lists."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item) for item in value]
    raise TypeError(f"a chat template gets plain values only, not {type(value).__name__}")


def _plain_list(values: object) -> list[Json]:
    plain = plain_data(values)
    assert isinstance(plain, list)
    return plain


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training masks; rendering only needs the text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(lineno)

    @staticmethod
    def _text(caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` for templates: a callable without the type behind it, which could be used to climb out of the sandbox."""

    def __call__(self, *args: object, **kwargs: object) -> dict[str, object]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: list[object], value: object = None) -> dict[object, object]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """jinja2's namespace without underscore names."""

    def __init__(self, /, *args: object, **kwargs: object) -> None:  # `/`: a template may set the name `self`
        for name in dict(*args, **kwargs):
            _check_name(name)
        super().__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template may not store the underscore name {name!r} on a namespace")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
