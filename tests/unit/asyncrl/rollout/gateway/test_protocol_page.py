"""The page about protocols lists every field that a protocol knows, in the row of what becomes of it."""

import re
from pathlib import Path

import pytest

from asyncrl.rollout.gateway import anthropic_messages, openai_chat, openai_responses
from asyncrl.rollout.gateway.request_fields import FieldTable

PAGE = Path(__file__).resolve().parents[5] / "docs" / "gateway-protocols.md"
SECTIONS = {
    "Chat completions": openai_chat.FIELDS,
    "Responses": openai_responses.FIELDS,
    "Messages": anthropic_messages.FIELDS,
}


@pytest.mark.parametrize(("section", "table"), SECTIONS.items(), ids=list(SECTIONS))
def test_the_page_and_the_table_agree(section: str, table: FieldTable) -> None:
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w[^|]*?) \| (`.*) \|$", text, re.MULTILINE))
    listed = {name.split(",")[0]: set(re.findall(r"`(\w+)`", fields)) for name, fields in rows.items()}
    assert listed == {"have an effect": table.read, "ignored": table.ignored, "refused": set(table.refused)}
