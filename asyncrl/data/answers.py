"""Final answers in text: the number after `####`, or the last one, as an exact fraction."""

import re
from fractions import Fraction
from typing import Literal

from asyncrl.data.values import Json

Mode = Literal["strict", "flexible"]
MARKER = "####"
MAX_CHARS = 400  # digits and exponent of one number; a longer one is no answer and would cost memory

# Full-width forms become ASCII, and the minus signs that text editors produce become one.
_ASCII = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | dict.fromkeys((0x2212, 0xFE63, 0x2013), ord("-"))
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
# Atomic (?>...): what follows may refuse the number, but never shorten it. "1e5.2" is no number, and not 1.
_NUMBER = re.compile(
    r"""
    (?:(?<![A-Za-z0-9_)\]}])(?P<sign>[+-]))?       # 10-6 holds a 6, not a -6
    (?<![A-Za-z0-9_])(?<!\d[.,/:])                 # H2O and the tail of 1,23 hold none
    (?>
        (?P<whole>\d+)\ +(?P<over>\d+)/(?P<under>\d+)
      | (?P<number>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)
        (?P<exponent>[eE][+-]?\d+)?
        (?:\s*/\s*(?P<denominator>\d+))?
    )
    (?!\d|[.,:]\d|\s*\^|\s*/\s*\d)
    """,
    re.VERBOSE,
)


def final_number(text: str, mode: Mode = "strict") -> Fraction | None:
    """The final answer of a worked solution, or None if it has none.

    strict: the first number on the line after the last `####`. flexible: the same, else the last number of the text.
    Signs, thousands separators, currency, units, percent signs (50% is 50), decimals, fractions (also LaTeX's),
    exponents, boxes and full-width digits are understood. A number is read whole or not at all, never by its beginning.
    """
    start = text.rfind(MARKER)
    if start >= 0:
        found = _first(text[start + len(MARKER) :].split("\n", 1)[0])
        if found is not None or mode == "strict":
            return found
    if mode == "strict":
        return None
    values = [_value(match) for match in _NUMBER.finditer(_cleaned(text))]
    return next((value for value in reversed(values) if value is not None), None)


def truth_number(truth: Json, mode: Mode = "strict") -> Fraction | None:
    """The number that a ground truth stands for, or None.

    Text without a marker is a number only if it is nothing else: `no marker, answer is 12` has no strict answer.
    """
    if isinstance(truth, bool) or not isinstance(truth, int | float | str):
        return None
    text = repr(truth) if isinstance(truth, int | float) else truth
    if MARKER in text or mode == "flexible":
        return final_number(text, mode)
    return only_number(text)


def only_number(text: str) -> Fraction | None:
    """The number a text consists of: surrounding space, a final full stop and a percent sign are no other content."""
    cleaned = _cleaned(text).strip().removesuffix(".").removesuffix("%").strip()
    match = _NUMBER.fullmatch(cleaned)
    return None if match is None else _value(match)


def canonical(number: Fraction) -> str:
    """One way to write a number: an integer, a decimal where it ends, else a fraction."""
    if number.denominator == 1:
        return str(number.numerator)
    twos_and_fives = number.denominator
    places = 0
    while twos_and_fives % 10 == 0 or twos_and_fives % 2 == 0 or twos_and_fives % 5 == 0:
        twos_and_fives //= 10 if twos_and_fives % 10 == 0 else 2 if twos_and_fives % 2 == 0 else 5
        places += 1
    if twos_and_fives > 1:
        return f"{number.numerator}/{number.denominator}"
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}".rstrip("0")


def _first(line: str) -> Fraction | None:
    cleaned = re.sub(r"^\s*([+-])\s+(?=[\d.])", r"\1", _cleaned(line))
    match, digit = _NUMBER.search(cleaned), re.search(r"\d", cleaned)
    if match is None or digit is None or not match.start() <= digit.start() < match.end():
        return None  # the first digits are no number, as in 1,23; a later number is not the answer
    return _value(match)


def _cleaned(text: str) -> str:
    text = text.translate(_ASCII)
    if "\\" in text:
        text = _BOXED.sub(r" \1 ", _FRACTION.sub(_slashed, text))
        text = text.replace("\\!", "").replace("\\,", "").replace("\\", "")
    text = text.replace("{,}", ",")
    # US$5 and $-5 and -$5: the sign must stay beside the digits.
    return re.sub(r"[$\u20ac\u00a3\u00a5]\s?", "", re.sub(r"(?<=[A-Za-z0-9])[$\u20ac\u00a3\u00a5]", " ", text))


def _slashed(fraction: re.Match[str]) -> str:
    return f" {fraction.group(1).strip()}/{fraction.group(2).strip()} "


def _value(match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    exponent = int(part["exponent"][1:]) if part["exponent"] and len(part["exponent"]) < 6 else 0
    if len(match.group()) > MAX_CHARS or abs(exponent) > MAX_CHARS or (part["exponent"] and len(part["exponent"]) >= 6):
        return None
    if part["whole"]:
        value = _ratio(part["over"], part["under"])
        value = None if value is None else int(part["whole"]) + value
    else:
        number = Fraction(part["number"].replace(",", "")) * Fraction(10) ** exponent
        value = number if part["denominator"] is None else _ratio(number, part["denominator"])
    return -value if value is not None and part["sign"] == "-" else value


def _ratio(over: str | Fraction, under: str) -> Fraction | None:
    return Fraction(over) / int(under) if int(under) else None
