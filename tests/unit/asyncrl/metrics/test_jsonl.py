"""metrics.jsonl stays whole when its writer is killed, when the disk fills up, and when numbers are odd."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from asyncrl.metrics.sinks import Guarded, JsonlSink


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_a_flat_object_with_step_branch_and_time(path: Path) -> None:
    sink = JsonlSink(path, clock=lambda: 12.3456)
    sink.write(3, 1, {"critic/rewards/mean": 0.5})
    assert path.read_text() == '{"step": 3, "branch": 1, "time_s": 12.346, "critic/rewards/mean": 0.5}\n'
    sink.close()


def test_a_line_is_there_before_the_sink_is_closed(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(1, 1, {"x": 1})
    assert len(lines(path)) == 1
    sink.close()


@pytest.mark.parametrize("torn", [b'{"step": 2, "bra', b"\x00\x00\x00", b"{" + b"x" * 200_000])
def test_the_torn_last_line_of_a_killed_run_is_cut_off(path: Path, torn: bytes) -> None:
    sink = JsonlSink(path)
    sink.write(1, 1, {"x": 1})
    sink.close()
    with path.open("ab") as file:
        file.write(torn)
    sink = JsonlSink(path)
    sink.write(2, 2, {"x": 2})
    sink.close()
    assert [(row["step"], row["branch"]) for row in lines(path)] == [(1, 1), (2, 2)]


def test_a_file_that_is_nothing_but_a_torn_line_is_emptied(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"step": 1')
    JsonlSink(path).close()
    assert path.read_bytes() == b""


def test_numbers_of_numpy_are_numbers(path: Path) -> None:
    sink = JsonlSink(path)
    sink.write(1, 1, {"a": np.float32(0.5), "b": np.int64(3), "c": np.float64("nan")})  # type: ignore[dict-item]  # the case
    sink.close()
    (row,) = lines(path)
    assert (row["a"], row["b"], row["c"]) == (0.5, 3, "nan")
    assert isinstance(row["b"], int)


def test_a_metric_may_not_take_the_name_of_a_field(path: Path) -> None:
    sink = JsonlSink(path)
    with pytest.raises(AssertionError, match="time_s"):
        sink.write(1, 1, {"time_s": 3.0})
    sink.close()


def test_a_full_disk_loses_no_line_and_tears_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Guarded("metrics.jsonl", JsonlSink(path), kept=True)
    sink.write(1, 1, {"x": 1})
    really = os.write
    room = 10

    def full_after_ten_bytes(file: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        data, room = data[:room], max(0, room - len(data))
        return really(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_after_ten_bytes)
        sink.write(2, 1, {"x": 2})
        sink.write(3, 1, {"x": 3})
        assert [row["step"] for row in lines(path)] == [1]
    sink.write(4, 1, {"x": 4})
    sink.close()
    assert [row["step"] for row in lines(path)] == [1, 2, 3, 4]
    assert [record.message.split("(")[0] for record in caplog.records] == [
        "metrics sink metrics.jsonl failed at write ",
        "metrics sink metrics.jsonl works again; nothing was lost",
    ]
