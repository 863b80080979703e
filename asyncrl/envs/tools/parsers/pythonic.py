"""Calls as a Python list: a turn that is `[name(argument=value, ...), ...]`, with literals as values.

So write Llama 4, ToolACE and others. Source: the models' prompt formats. Nothing is run: the text is parsed.
"""

import ast
import re
import warnings
from collections.abc import Mapping
from types import MappingProxyType

from asyncrl.data.values import Json, replace_surrogates
from asyncrl.envs.tools.parsers.base import BadCall, Item, Taken, ToolCall, spaces

START, END = "<|python_start|>", "<|python_end|>"
_BEGINS = re.compile(rf"(?:{re.escape(START)})?\s*(?P<list>\[\s*(?P<name>[A-Za-z_][\w.]*)\s*\()")
_HINT = "Write [name(argument=value, ...)], with literals as values."
_CONSTANTS: Mapping[str, Json] = MappingProxyType({"true": True, "false": False, "null": None})


class _NoLiteral(ValueError):
    """A value that JSON cannot hold."""


class PythonicParser:
    """What a turn is shows at its end: it is a call as a whole or not at all."""

    may_complete = ""

    def is_shown_by(self, template: str) -> bool:
        """It writes the control token that opens such a list."""
        return START in template

    def take(self, rest: str, *, is_start: bool, is_end: bool) -> Taken | None:
        """All of a turn of calls at its end; text otherwise."""
        if is_start and rest[0].isspace():
            return spaces(rest)
        if is_start and not is_end and (rest.startswith("[") or START.startswith(rest[: len(START)])):
            return None
        meant = _BEGINS.match(rest) if is_start and is_end else None
        if meant is None:
            return Taken((rest,), len(rest))
        return Taken(_calls(rest[meant.start("list") :], meant["name"]), len(rest))


def _calls(text: str, first_name: str) -> tuple[Item, ...]:
    source = text.strip().removesuffix(END).strip()
    try:
        with warnings.catch_warnings():  # of odd escapes, which are the model's
            warnings.simplefilter("ignore")
            body = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        wrong, hint = ("malformed", _HINT) if source.endswith("]") else ("unclosed", "Close the list with ].")
        return (BadCall(wrong, first_name, hint, len(source)),)
    if not isinstance(body, ast.List):
        return (BadCall("malformed", first_name, _HINT, len(source)),)
    return tuple(_call(node, source) for node in body.elts)


def _call(node: ast.expr, source: str) -> ToolCall | BadCall:
    num_chars = (node.end_col_offset or 0) - node.col_offset if node.lineno == node.end_lineno else len(source)
    if not isinstance(node, ast.Call):
        return BadCall("malformed", "", _HINT, num_chars)
    name = _dotted(node.func)
    names = [keyword.arg for keyword in node.keywords]
    if not name:
        return BadCall("missing name", "", "Give the name of the tool.", num_chars)
    if node.args or None in names:
        return BadCall("malformed", name, f"Name every argument. {_HINT}", num_chars)
    try:
        values = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    except (_NoLiteral, RecursionError):
        return BadCall("malformed", name, f"A value is no literal. {_HINT}", num_chars)
    return ToolCall(name, values)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def _literal(node: ast.expr) -> Json:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return replace_surrogates(node.value)[0]
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _literal(node.operand)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Dict):
        pairs = [
            (None if key is None else _literal(key), value) for key, value in zip(node.keys, node.values, strict=True)
        ]
        if all(isinstance(key, str) for key, _ in pairs):
            return {str(key): _literal(value) for key, value in pairs}
    raise _NoLiteral
