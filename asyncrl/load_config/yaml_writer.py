"""Plain values -> YAML text that yaml_reader reads back as the same values."""

import json
import re
from collections.abc import Iterator, Mapping

from asyncrl.load_config.yaml_reader import Json, read

PLAIN_IN_A_LIST = re.compile(r"[A-Za-z0-9_./:@+-]+\Z")
COMMENT_COLUMN = 44


def scalar(value: Json) -> str:
    """One value on one line; text is quoted only where it would be read as something else."""
    if isinstance(value, str):
        return value if _reads_back(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(_item(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_item(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def document(tree: Mapping[str, Json], comments: Mapping[str, str]) -> str:
    """A nested mapping, one key a line, each with the comment of its dotted key."""
    return "".join(f"{line}\n" for line in _lines(tree, comments, "", 0))


def _lines(tree: Mapping[str, Json], comments: Mapping[str, str], prefix: str, depth: int) -> Iterator[str]:
    for name, value in tree.items():
        start = f"{'  ' * depth}{name}:"
        if isinstance(value, dict) and value:
            yield start
            yield from _lines(value, comments, f"{prefix}{name}.", depth + 1)
        else:
            text = f"{start} {scalar(value)}"
            comment = comments.get(prefix + name)
            yield f"{text:<{COMMENT_COLUMN}} # {comment}" if comment else text


def _item(value: Json) -> str:
    """A value inside [...] or {...}, where commas and brackets end plain text."""
    if isinstance(value, str):
        return value if PLAIN_IN_A_LIST.match(value) and _reads_back(value) else json.dumps(value, ensure_ascii=False)
    return scalar(value)


def _reads_back(text: str) -> bool:
    again = read(text, "")
    return not again.problems and again.value == text and isinstance(again.value, str) and "\n" not in text
