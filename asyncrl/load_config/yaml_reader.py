"""YAML text -> plain values, with the line of every key; the traps of YAML 1.1 are closed here.

Only `true` and `false` are booleans, so that `off` stays the word it is; `1e-6` is a number; `010` and `12:30:45` are
text, never an octal or a count of seconds. Refused, with the line: duplicate keys, tags, `${...}` (nothing is
interpolated), NaN and infinity.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

PREFIX = "tag:yaml.org,2002:"
NULL, BOOL, INT, FLOAT, TEXT = (PREFIX + name for name in ("null", "bool", "int", "float", "str"))
INT_TEXT = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
FLOAT_TEXT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
NON_FINITE_TEXT = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a configuration: the dotted key ("" for all of it), where it stands, and what is wrong."""

    key: str
    where: str
    text: str


@dataclass
class Document:
    """What a YAML text says.

    Attributes:
        value: the plain value; a mapping for a file.
        lines: dotted key -> line, counted from 1.
        problems: what was refused on the way; `value` is not to be used if there are any.
    """

    value: Json = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read(text: str, source: str) -> Document:
    """Read one YAML document. `source` names it in problems: a path, or an override as it was typed."""
    document = Document()
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        document.problems.append(_syntax_problem(error, source))
        return document
    if node is not None:
        document.value = _Reader(document, source).plain(node, "", ())
    return document


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # a class without types
    """PyYAML's safe loader with the core schema of YAML 1.2 in place of the words and octals of 1.1."""

    yaml_implicit_resolvers: Mapping[str, object] = {}


_Loader.add_implicit_resolver(NULL, re.compile(r"(~|null|Null|NULL|)\Z"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(BOOL, re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
_Loader.add_implicit_resolver(INT, INT_TEXT, list("-+0123456789"))
_Loader.add_implicit_resolver(FLOAT, NON_FINITE_TEXT, list("-+."))
# A whole number with a leading zero (010) is left as text: as a number it would lose the zero, or be read as octal.
_Loader.add_implicit_resolver(FLOAT, re.compile(rf"(?![-+]?0[0-9_]+\Z){FLOAT_TEXT.pattern}"), list("-+.0123456789"))


class _Reader:
    """Turns nodes into plain values and notes keys, lines and problems."""

    def __init__(self, document: Document, source: str) -> None:
        self.document, self.source = document, source

    def plain(self, node: yaml.Node, key: str, parents: tuple[int, ...]) -> Json:
        """The value of a node. `parents` are the ids of the nodes around it: an alias may point back at one."""
        if id(node) in parents:
            self.refuse(node, key, "an alias that contains itself has no value")
            return None
        if isinstance(node, yaml.MappingNode) and node.tag == PREFIX + "map":
            return self.mapping(node, key, (*parents, id(node)))
        if isinstance(node, yaml.SequenceNode) and node.tag == PREFIX + "seq":
            inner = (*parents, id(node))
            return [self.plain(item, f"{key}[{index}]", inner) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in (NULL, BOOL, INT, FLOAT, TEXT):
            return self.scalar(node, key)
        self.refuse(node, key, f"the tag {node.tag} is not read; write a plain value")
        return None

    def mapping(self, node: yaml.MappingNode, key: str, parents: tuple[int, ...]) -> Json:
        """The value of a mapping, its keys checked."""
        values: dict[str, Json] = {}
        first: dict[str, int] = {}
        for name_node, value_node in node.value:
            line = name_node.start_mark.line + 1
            if not isinstance(name_node, yaml.ScalarNode) or name_node.tag != TEXT:
                self.refuse(
                    name_node, key, f"{_shown(name_node)} is not a key: a key is a word; quote it if it is meant"
                )
                continue
            name = str(name_node.value)
            inner = f"{key}.{name}" if key else name
            if name in values:
                text = f"the key stands twice, in lines {first[name]} and {line}, and one would silently win. Keep one."
                self.refuse(name_node, inner, text)
                continue
            first[name] = self.document.lines[inner] = line
            values[name] = self.plain(value_node, inner, parents)
        return values

    def scalar(self, node: yaml.ScalarNode, key: str) -> Json:
        """The value of a scalar."""
        text = str(node.value)
        if node.tag == NULL:
            return None
        if node.tag == BOOL:
            return text.lower() == "true"
        if node.tag == INT:
            return int(text.replace("_", ""))
        if node.tag == FLOAT:
            number = math.nan if NON_FINITE_TEXT.match(text) else float(text.replace("_", ""))
            if not math.isfinite(number):
                self.refuse(node, key, f"{text} is not a finite number")
            return number
        if "${" in text:
            self.refuse(node, key, "${...} asks for an interpolation, and none is done here. Write the value itself.")
        return text

    def refuse(self, node: yaml.Node, key: str, text: str) -> None:
        """Note a problem at the node."""
        self.document.problems.append(Problem(key, f"{self.source} line {node.start_mark.line + 1}", text))


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"


def _syntax_problem(error: yaml.YAMLError, source: str) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{source} line {mark.line + 1}" if mark is not None else source
    context = f" {error.context}" if getattr(error, "context", None) else ""
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return Problem("", where, f"not YAML:{context} {what}".replace("  ", " "))
