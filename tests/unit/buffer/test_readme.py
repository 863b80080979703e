"""The table of the public API in buffer/README.md names what there is: no more, no less, each once."""

import re
from collections import Counter
from pathlib import Path

import buffer
from buffer import ReplayBuffer

README = Path(__file__).resolve().parents[3] / "buffer" / "README.md"


def rows() -> list[list[str]]:
    """The names in the first cell of each row of the API's tables, their heads left out."""
    (section,) = re.findall(r"^## API\n(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)
    cells = re.findall(r"^\| (`.+?`) \| .+ \|$", section, re.MULTILINE)
    return [re.findall(r"`(\w+)`", cell) for cell in cells]


def documented() -> Counter[str]:
    return Counter(name for names in rows() for name in names)


def test_every_public_name_and_method_has_its_line_and_no_line_is_of_something_gone() -> None:
    methods = {name for name in dir(ReplayBuffer) if not name.startswith("_")}
    assert set(documented()) == methods | set(buffer.__all__)
    assert [name for name, count in documented().items() if count > 1] == []


def test_a_line_says_one_thing_in_one_line() -> None:
    (section,) = re.findall(r"^## API\n(.*?)^## ", README.read_text(), re.MULTILINE | re.DOTALL)
    said = re.findall(r"^\| .+? \| (.+) \|$", section, re.MULTILINE)
    assert len(said) > 40
    assert all(text.strip() for text in said)
