"""Parsers of tool calls by name, for `rollout.tools.parser`. A new one is a file beside this one and a line here."""

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from asyncrl.envs.tools.parsers.base import BadCall, ParsedTurn, ToolCall, ToolCallParser, TurnReader, parse_turn
from asyncrl.envs.tools.parsers.harmony import HarmonyParser
from asyncrl.envs.tools.parsers.hermes import HermesParser
from asyncrl.envs.tools.parsers.llama3_json import Llama3JsonParser
from asyncrl.envs.tools.parsers.mistral import MistralParser
from asyncrl.envs.tools.parsers.pythonic import PythonicParser
from asyncrl.envs.tools.parsers.qwen3_coder import Qwen3CoderParser, typed
from asyncrl.errors import ConfigError

__all__ = [
    "PARSERS",
    "BadCall",
    "ParsedTurn",
    "ToolCall",
    "ToolCallParser",
    "TurnParser",
    "TurnReader",
    "find_parser",
    "parse_turn",
    "typed",
]

AUTO, DEFAULT = "auto", "hermes"
PARSERS: Mapping[str, ToolCallParser] = MappingProxyType(
    {
        "hermes": HermesParser(),
        "qwen": HermesParser(),
        "qwen3_coder": Qwen3CoderParser(),
        "llama3_json": Llama3JsonParser(),
        "mistral": MistralParser(),
        "pythonic": PythonicParser(),
        "harmony": HarmonyParser(),
    }
)
_OTHER_FORMS = (
    "<tool_call>",
    "<|tool_call",
    "<tool_calls",
    "functions.",
    "<function=",
)  # of calls that no parser reads


def find_parser(name: str, template: str) -> tuple[str, ToolCallParser]:
    """The parser that `rollout.tools.parser` names, with its own name.

    Args:
        name: of the table, or `auto`: the one whose form the template shows. A template that shows none, as a model's
            that was never trained on tools does, gets Hermes'.
        template: source of the model's chat template.
    Raises:
        ConfigError: the template shows several forms, or one that no parser reads.
    """
    if name != AUTO:
        return name, PARSERS[name]
    shown: dict[type, tuple[str, ToolCallParser]] = {}
    for key, parser in PARSERS.items():
        if parser.is_shown_by(template):
            shown.setdefault(type(parser), (key, parser))  # the first of two names for one form
    if len(shown) > 1 or (not shown and any(form in template for form in _OTHER_FORMS)):
        found = (
            f"several forms ({', '.join(key for key, _ in shown.values())})" if shown else "a form that is not known"
        )
        raise ConfigError(
            f"rollout.tools.parser = auto, but the model's chat template shows tool calls in {found}. Set it to one "
            f"of {', '.join(PARSERS)}."
        )
    return next(iter(shown.values()), (DEFAULT, PARSERS[DEFAULT]))


class TurnParser:
    """Reads the turns of a model whose chat template is known. The parser is found when the first turn is read: what a
    template leaves open is no fault where nobody calls tools."""

    def __init__(self, name: str, template: str, *, in_thought: bool) -> None:
        """See find_parser, and TurnReader for in_thought."""
        self._name, self._template, self._in_thought = name, template, in_thought

    def __call__(self, text: str) -> ParsedTurn:
        """See parse_turn. Raises ConfigError: see find_parser."""
        return parse_turn(self._parser, text, in_thought=self._in_thought)

    @cached_property
    def _parser(self) -> ToolCallParser:
        return find_parser(self._name, self._template)[1]
