"""Shared by the tests of kernels: both ways in which they compute."""

import pytest

from weightsync import diff


@pytest.fixture(params=["numba", "numpy"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two it is; what has no numba has one test fewer, not a failure."""
    if request.param == "numpy":
        monkeypatch.setattr(diff, "HAVE_NUMBA", False)
    elif not diff.HAVE_NUMBA:
        pytest.skip("numba is not installed")
    return str(request.param)
