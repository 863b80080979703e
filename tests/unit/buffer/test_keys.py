"""Names: what a run may be called, and what its keys and payloads are called."""

import pytest

from buffer.errors import BufferError
from buffer.keys import check_run, evaluation_run, ledger_key, member, owns, parse_payload_key, payload_key


@pytest.mark.parametrize("run", ["", "a b", "a{b}", "a*", "a:b", "../a", ".a", "a" * 201, "a/b", "run\n"])
def test_a_name_that_cannot_stand_in_a_key_or_a_path_is_refused(run: str) -> None:
    with pytest.raises(BufferError, match=r"run\.name"):
        check_run(run)


@pytest.mark.parametrize("run", ["a", "gsm8k_sync-2", "r.eval.1.7", "0"])
def test_a_plain_name_is_taken(run: str) -> None:
    assert check_run(run) == run


def test_the_keys_of_a_ledger_share_a_slot_and_payloads_do_not() -> None:
    assert ledger_key("demo", "ready") == "{demo}:ready"
    for spilled in (True, False):
        key = payload_key("demo", "7.2", "a1b2", spilled=spilled)
        assert "{" not in key
        assert key.endswith(":a1b2")
        assert parse_payload_key(key) == ("demo", 7, "a1b2")


@pytest.mark.parametrize("key", ["hello", "payload:demo:7.2", "payload:demo:x.2:t", "other:demo:7.2:t", "{demo}:ready"])
def test_what_is_no_payload_key_is_not_taken_for_one(key: str) -> None:
    assert parse_payload_key(key) is None


def test_members_sort_like_their_ordinals() -> None:
    ordinals = [0, 2, 9, 10, 99, 100, 10**11]
    assert sorted(map(member, reversed(ordinals))) == [member(o) for o in ordinals]


def test_a_run_owns_its_evaluations_and_no_other_run() -> None:
    assert owns("demo", "demo")
    assert owns("demo", evaluation_run("demo", "1.7"))
    assert not owns("demo", "demo2")
    assert not owns("demo", "demo.b")
