"""What a docstring says of a function and of each argument, in Google's style (`Args:`)."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|References):\s*\Z"
)
_ARGUMENT = re.compile(r"\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?\s*:\s*(?P<text>.*)\Z", re.DOTALL)
_OF_ARGUMENTS = ("Args", "Arguments", "Parameters")


@dataclass(frozen=True)
class Described:
    """Attributes:
    summary: all that stands before the first section, one line a paragraph.
    arguments: name -> what it is.
    """

    summary: str
    arguments: Mapping[str, str]


def described(docstring: str | None) -> Described:
    """Read one. Nothing is an error: what is not in this form is part of the summary."""
    summary: list[str] = []
    arguments: dict[str, str] = {}
    section = ""
    for block in _blocks(inspect.cleandoc(docstring or "")):
        head, _, body = block.partition("\n")
        if match := _SECTION.match(head):
            section = match[1]
        if section == "":
            summary.append(" ".join(block.split()))
        elif section in _OF_ARGUMENTS:
            arguments |= dict(_arguments(body if match else block))
    return Described("\n".join(summary), arguments)


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs; a section's head begins one even without an empty line before it."""
    block: list[str] = []
    for line in text.splitlines():
        if block and (not line.strip() or _SECTION.match(line)):
            yield "\n".join(block)
            block = []
        if line.strip():
            block.append(line)
    if block:
        yield "\n".join(block)


def _arguments(body: str) -> Iterator[tuple[str, str]]:
    """Entries of a section, each with the lines that are indented deeper than its first."""
    entries: list[list[str]] = []
    indent: int | None = None
    for line in body.splitlines():
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        if depth <= indent:
            entries.append([])
        entries[-1].append(line.strip())
    for entry in entries:
        if match := _ARGUMENT.match(" ".join(entry)):
            yield match["name"], match["text"].strip()
