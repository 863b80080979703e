"""Final numbers: read whole, with their sign, or not at all."""

from fractions import Fraction

import pytest

from asyncrl.data.answers import canonical, final_number, only_number, truth_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### $1,234.00", "1234"),
        ("#### -$5", "-5"),
        ("#### $-5", "-5"),
        ("#### US$5 each", "5"),
        ("#### - 3", "-3"),
        ("#### +3", "3"),
        ("#### 1 1/2 cups", "1.5"),
        ("#### 1{,}000", "1000"),
        ("#### .5", "0.5"),
        ("#### 2/3", "2/3"),
        ("#### 1e-1", "0.1"),
        ("#### \u7b54\u6848\u662f42\u3002", "42"),
        ("2+40=42\n#### 42\n" + "so the answer is checked, as one can see from the sum.\n" * 8, "42"),
    ],
)
def test_a_marked_number_is_understood_as_it_is_written(text: str, number: str) -> None:
    found = final_number(text)
    assert found is not None
    assert canonical(found) == number


@pytest.mark.parametrize(
    "text", ["1,23", "12345,678", "1.2.3", "2024/01/02", "1e5.2", "10^3", "3/0", "10:30", "nan", "1" * 5000]
)
def test_a_number_is_never_read_by_its_beginning(text: str) -> None:
    """The 1 of 1,23 is no answer (B121)."""
    assert final_number(f"#### {text}") is None


def test_a_number_with_a_huge_exponent_costs_nothing_and_is_none() -> None:
    assert final_number("#### 1e999999999") is None


def test_the_last_marker_counts_even_if_it_has_no_number() -> None:
    assert final_number("#### 5\n#### none") is None


def test_flexible_takes_the_marker_first_and_else_the_last_number_of_the_text() -> None:
    assert final_number("#### 5\n(checked 3 times)", "flexible") == 5
    assert final_number("The answer is 5 apples (checked 3 times)", "flexible") == 3
    assert final_number("Final Answer: **73**", "flexible") == 73
    assert final_number("10-6=4", "flexible") == 4
    assert final_number("no digits", "flexible") is None


@pytest.mark.parametrize(("reply", "number"), [("Reward: 10", "10"), ("Reward: 1e-1", "0.1"), ("Reward: -0.5", "-0.5")])
def test_a_judges_number_is_read_whole(reply: str, number: str) -> None:
    """Reward: 10 is not 1 (B121)."""
    found = final_number(reply, "flexible")
    assert found is not None
    assert canonical(found) == number


def test_only_number_refuses_text_around_the_number() -> None:
    assert only_number(" 19. ") == 19
    assert only_number("50%") == 50
    assert only_number("19 or 20") is None
    assert only_number("") is None


def test_a_truth_without_a_marker_must_be_a_number_and_nothing_else() -> None:
    assert truth_number(42.0) == truth_number("42") == truth_number(42) == 42
    assert truth_number("no marker, answer is 12") is None
    assert truth_number(True) is None
    assert truth_number({"a": 1}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(-3, 8), "-0.375"),
        (Fraction(1, 3), "1/3"),
        (Fraction(5), "5"),
        (Fraction(1, 50), "0.02"),
        (Fraction(-1, 1000), "-0.001"),
    ],
)
def test_canonical_writes_a_number_one_way(value: Fraction, text: str) -> None:
    assert canonical(value) == text
    assert truth_number(text) == value


def test_white_space_in_an_unfinished_fraction_costs_no_time() -> None:
    assert final_number("#### \\frac{" + " " * 50_000) is None
    assert final_number("\\frac{" * 10_000 + " 7", "flexible") == 7
