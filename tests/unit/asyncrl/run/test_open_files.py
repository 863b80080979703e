"""The limit of open files: raised as far as it may be, never lowered."""

import logging
import resource
from collections.abc import Iterator

import pytest

from asyncrl.run.open_files import allow_open_files


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_low_limit_is_raised_to_what_is_wanted(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    assert allow_open_files(300) == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, limits[1])
    assert allow_open_files(200) == 300


def test_a_limit_that_cannot_be_raised_so_far_is_said(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: asked.append(pair))
    with caplog.at_level(logging.WARNING):
        assert allow_open_files(5000) == 1024
    assert asked == [(1024, 1024)]
    assert "1024 files may be open at once, 5000 are wanted" in caplog.text
