"""Keys that were not made by us: none of them becomes a path outside of the payloads' home, and none stops a sweep."""

from pathlib import Path

import pytest

from buffer import CorruptPayload
from buffer.keys import parse_payload_key, payload_key
from buffer.payloads.directory import DirectoryPayloads

TOKEN = "0" * 31 + "a"
GOOD = payload_key("run", "0.1", TOKEN, spilled=True)
HOSTILE = (
    "spilled:x/../../../escape",
    "spilled:run:0.1:/../../escape",
    "spilled:../../escape:0.1:" + TOKEN,
    "spilled:run:0.1:../../../escape",
    "spilled:run:0.1/../../../escape:" + TOKEN,
    "../escape",
    "/etc/hostname",
    "",
    "spilled:",
)


@pytest.mark.parametrize("key", HOSTILE)
def test_a_key_out_of_the_ledger_never_leaves_the_home_of_payloads(key: str, tmp_path: Path) -> None:
    """B221: 'spilled:x/../../../escape' is neither read, nor written, nor deleted."""
    outside = tmp_path / "escape"
    outside.write_bytes(b"secret")
    home = DirectoryPayloads(f"file://{tmp_path}/home/payloads")
    home.put(GOOD, b"ours")
    with pytest.raises(CorruptPayload, match="not the key of a payload"):
        home.get(key)
    with pytest.raises(CorruptPayload, match="not the key of a payload"):
        home.put(key, b"theirs")
    home.delete([key, GOOD])
    assert outside.read_bytes() == b"secret"
    assert home.get(GOOD) is None, "what came after it in the trash was deleted all the same"
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert made == [outside]


@pytest.mark.parametrize(
    "key",
    [
        *HOSTILE,
        "payload:run:\u00b2.1:" + TOKEN,
        f"payload:run:{'9' * 5000}.1:{TOKEN}",
        "payload:run:1.1:" + TOKEN + "\n",
    ],
)
def test_a_key_of_another_form_is_none_of_ours_and_no_error(key: str) -> None:
    assert parse_payload_key(key) is None


def test_a_key_of_ours_is_known_with_its_parts() -> None:
    assert parse_payload_key(GOOD) == ("run", 0, TOKEN)
