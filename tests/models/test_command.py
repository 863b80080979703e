"""The command that explores: what it prints, and with which code it leaves."""

import pytest

from tests.models.__main__ import main


def test_a_broken_case_is_shown_with_its_shortest_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "put_idem"]) == 0
    printed = capsys.readouterr().out
    assert "ledger: without put_idem: 16 states" in printed
    assert "ordinal 0 is ready but its payload is gone" in printed
    assert " 4 worker 0: put 0 (reply lost)\n     5 worker 0: put 0\n" in printed
    assert "0 of 1 cases" in printed


def test_a_fixed_case_by_name_is_explored_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "limit 1"]) == 0
    assert capsys.readouterr().out.startswith("weights: limit 1: 516 states")


def test_a_case_that_nobody_has_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ledger", "leese_idem"])
    assert "no case is named ['leese_idem']" in capsys.readouterr().err
