"""What became of every sampled token, in words."""

from asyncrl.commands import token_texts
from buffer import TokenLedger
from buffer.books import Spent


def ledger(held: int = 0, **fates: int) -> TokenLedger:
    spent = {(fate.replace("__", "/"), "math"): Spent("math", 1, tokens) for fate, tokens in fates.items()}
    return TokenLedger(held + sum(fates.values()), held, spent)


def test_nothing_is_said_of_what_has_not_ended() -> None:
    assert token_texts.one_line(TokenLedger(0, 0, {})) == "none sampled yet"
    assert token_texts.verdict(ledger(held=7)) == "No sampled token has ended yet."
    assert token_texts.one_line(ledger(held=7)) == "7 sampled, 7 held; ended: none yet"


def test_a_run_that_wastes_nothing_hears_so() -> None:
    assert "none was wasted" in token_texts.verdict(ledger(trained=90, evaluated=10))


def test_waste_is_said_with_its_largest_reason_and_what_that_means() -> None:
    tokens = ledger(trained=600, stale__resubmitted=300, failed__worker_lost=100, held=11)
    said = token_texts.verdict(tokens)
    assert said.startswith("40.0% of the sampled tokens that have ended were wasted, 30.0% as stale/resubmitted: ")
    assert "the prompt is played again" in said
    shares = "trained 60.0%, stale/resubmitted 30.0%, failed/worker_lost 10.0%"
    assert token_texts.one_line(tokens) == f"1,011 sampled, 11 held; ended: {shares}"


def test_the_table_is_by_size_and_every_fate_has_a_meaning() -> None:
    rows = list(token_texts.table(ledger(trained=1, filtered__zero_variance=5, failed__of_a_new_kind=3)))
    assert [(row[0], row[3]) for row in rows] == [
        ("filtered/zero_variance", "5"),
        ("failed/of_a_new_kind", "3"),
        ("trained", "1"),
    ]
    assert all(row[5] for row in rows)
