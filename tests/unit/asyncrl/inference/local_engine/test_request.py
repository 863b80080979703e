"""Version spans of a request."""

import pytest

from asyncrl.inference.local_engine.request import Request, VersionSpan
from asyncrl.inference.local_engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("marks", "num_output", "expected"),
    [
        ([(0, "a")], 5, [("a", 0, 5)]),
        ([(0, "a"), (3, "b")], 5, [("a", 0, 3), ("b", 3, 5)]),
        ([(0, "a"), (3, "b"), (3, "c")], 5, [("a", 0, 3), ("c", 3, 5)]),
        ([(0, "a"), (3, "b"), (3, "a")], 5, [("a", 0, 5)]),
        ([(0, "a"), (5, "b")], 5, [("a", 0, 5)]),
        ([(0, "a"), (0, "b")], 2, [("b", 0, 2)]),
        ([(0, "a")], 0, [("a", 0, 0)]),
        ([(0, "a"), (0, "b")], 0, [("b", 0, 0)]),
    ],
)
def test_spans_cover_the_output_without_gaps(
    marks: list[tuple[int, str]], num_output: int, expected: list[tuple[str, int, int]]
) -> None:
    request = Request("r", [1], SamplingParams())
    for num, version in marks:
        request.mark_version(version, num)
    assert request.spans(num_output) == [VersionSpan(*span) for span in expected]


def test_the_same_version_again_opens_no_span() -> None:
    request = Request("r", [1], SamplingParams())
    request.mark_version("a", 0)
    request.mark_version("a", 3)
    assert request.version_marks == [(0, "a")]
