"""The faster form by measured rates: slow links take changes, fast ones take whole words once most of them changed."""

import pytest

from weightsync.link_rates import LinkRates

MB = 1 << 20


def measured(*, link: float, encode: float, whole: float, size: float) -> LinkRates:
    """Rates in bytes of words a second; `size`: bytes of changes by bytes of words."""
    rates = LinkRates()
    rates.note_encoded("changes", MB, int(size * MB), MB / encode)
    rates.note_encoded("whole", MB, MB, MB / whole)
    rates.note_sent(MB, MB / link)
    return rates


@pytest.mark.parametrize(
    ("link", "encode", "size", "form"),
    [
        (1.25e8, 3e9, 0.016, "changes"),  # 1 Gb/s, 3 % changed
        (1.25e9, 3e9, 0.016, "changes"),
        (5e9, 3e9, 0.016, "changes"),  # memory
        (5e9, 0.2e9, 0.17, "whole"),  # memory, half changed
        (1.25e9, 0.2e9, 0.17, "whole"),  # 10 Gb/s: coding half of the words takes longer than sending all
        (0.2e9, 0.2e9, 0.17, "changes"),  # no faster, but more bytes
    ],
)
def test_the_slower_of_encoding_and_sending_decides(link: float, encode: float, size: float, form: str) -> None:
    assert measured(link=link, encode=encode, whole=2e9, size=size).faster() == form


def test_changes_are_sent_until_every_rate_is_known() -> None:
    rates = LinkRates()
    assert rates.faster() == "changes"
    rates.note_encoded("whole", MB, MB, 1e-6)
    rates.note_sent(MB, 1e-9)
    assert rates.faster() == "changes"
    assert not rates.knows("changes")
    rates.note_encoded("changes", MB, MB // 2, 1.0)
    assert rates.faster() == "whole"


def test_a_link_that_became_slow_is_noticed() -> None:
    rates = measured(link=5e9, encode=0.2e9, whole=2e9, size=0.17)
    assert rates.faster() == "whole"
    for _ in range(8):
        rates.note_sent(MB, MB / 1e8)
    assert rates.faster() == "changes"


def test_what_an_engine_stands_still_for_counts() -> None:
    rates = measured(link=20e9, encode=1e9, whole=5e9, size=0.02)
    assert rates.faster() == "whole", "sooner there, as far as is known"
    rates.note_applied("changes", MB, MB / 5e9)
    rates.note_applied("whole", MB, MB / 0.7e9)
    assert rates.faster() == "changes"
    rates = measured(link=20e9, encode=1e9, whole=5e9, size=0.6)
    rates.note_applied("changes", MB, MB / 0.5e9)
    rates.note_applied("whole", MB, MB / 2e9)
    assert rates.faster() == "whole", "applying so many changes takes longer than copying all"
