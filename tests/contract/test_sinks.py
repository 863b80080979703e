"""Every sink takes every metric of every step once, survives a resume, and stops no training when it fails."""

import json
import logging
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config import MetricsConfig
from asyncrl.errors import PreflightError
from asyncrl.metrics.sinks import Guarded, JsonlSink, Sink, TensorboardSink, WandbSink, open_sinks

Rows = list[tuple[int, int, dict[str, float]]]
SECRET = "hunter2"


def read_jsonl(run_dir: Path) -> Rows:
    rows: Rows = []
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
        step, branch, time_s = row.pop("step"), row.pop("branch"), row.pop("time_s")
        assert time_s > 0
        rows.append((step, branch, {name: float(value) for name, value in row.items()}))
    return rows


def read_tensorboard(run_dir: Path) -> Rows:
    """What TensorBoard shows: of a step that came twice, the later branch's."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    accumulator.Reload()
    steps: dict[int, dict[str, float]] = {}
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            assert tag not in steps.setdefault(event.step, {}), f"{tag} arrived twice at step {event.step}"
            steps[event.step][tag] = event.value
    return [(step, int(values.pop("training/branch")), values) for step, values in sorted(steps.items())]


def read_wandb(run_dir: Path) -> Rows:
    """The history of the offline files, oldest first."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # its service writes on for a moment after a run was finished
    rows: Rows = []
    for path in sorted((run_dir / "wandb").glob("offline-run-*/*.wandb")):
        for blob in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(blob)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                values = {name: value for name, value in items.items() if not name.startswith("_")}
                rows.append((values.pop("step"), values.pop("branch"), values))
    return rows


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log, which an offline file is: blocks of 32 kB, records cut at their ends."""
    offset, parts = 7, b""
    while offset + 7 <= len(data):
        left = 32768 - offset % 32768
        if left < 7:
            offset += left
            continue
        length, kind = struct.unpack_from("<HB", data, offset + 4)
        parts += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


OPEN: Mapping[str, Callable[[Path], Sink]] = {
    "jsonl": lambda run_dir: JsonlSink(run_dir / "metrics.jsonl"),
    "tensorboard": lambda run_dir: TensorboardSink(run_dir / "tensorboard"),
    "wandb": lambda run_dir: WandbSink(run_dir, "project", "run", {"actor": {"lr": 1e-6}}),
}
READ: Mapping[str, Callable[[Path], Rows]] = {
    "jsonl": read_jsonl,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
}


@pytest.fixture
def offline_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture(params=list(OPEN))
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "wandb":
        request.getfixturevalue("offline_wandb")
    return str(request.param)


def test_every_metric_of_every_step_arrives_once(kind: str, tmp_path: Path) -> None:
    sink = OPEN[kind](tmp_path)
    sink.write(0, 1, {"val-core/digits/reward/mean@4": 0.25})
    sink.write(1, 1, {"critic/rewards/mean": 0.5, "buffer/ready": 7})
    sink.write(2, 1, {"critic/rewards/mean": 0.75, "buffer/ready": 0})
    sink.close()
    assert READ[kind](tmp_path) == [
        (0, 1, {"val-core/digits/reward/mean@4": 0.25}),
        (1, 1, {"critic/rewards/mean": 0.5, "buffer/ready": 7.0}),
        (2, 1, {"critic/rewards/mean": 0.75, "buffer/ready": 0.0}),
    ]


def test_numbers_that_are_not_finite_arrive_as_such(kind: str, tmp_path: Path) -> None:
    sink = OPEN[kind](tmp_path)
    sink.write(3, 1, {"loss": math.inf, "kl": math.nan, "low": -math.inf})
    sink.close()
    ((_, _, values),) = READ[kind](tmp_path)
    assert float(values["loss"]) == math.inf
    assert math.isnan(float(values["kl"]))
    assert float(values["low"]) == -math.inf


def test_after_a_resume_the_newer_branch_goes_on_where_it_forked(kind: str, tmp_path: Path) -> None:
    first = OPEN[kind](tmp_path)
    for step in (1, 2, 3):
        first.write(step, 1, {"reward": step})
    first.close()
    second = OPEN[kind](tmp_path)
    for step in (2, 3, 4):
        second.write(step, 2, {"reward": 10 * step})
    second.close()
    newest: dict[int, tuple[int, float]] = {}
    for step, branch, values in READ[kind](tmp_path):
        newest[step] = max(newest.get(step, (0, 0.0)), (branch, values["reward"]))
    assert newest == {1: (1, 1.0), 2: (2, 20.0), 3: (2, 30.0), 4: (2, 40.0)}


class BrokenSink:
    """A sink whose medium is gone."""

    def __init__(self) -> None:
        self.attempts = 0

    def write(self, step: int, branch: int, values: Mapping[str, float]) -> None:
        self.attempts += 1
        raise ConnectionError("the medium is gone")

    def close(self) -> None:
        raise ConnectionError("the medium is still gone")


def test_a_failing_sink_is_reported_once_and_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    broken = BrokenSink()
    sink = Guarded("broken", broken)
    with caplog.at_level(logging.WARNING):
        for step in range(5):
            sink.write(step, 1, {"reward": 1.0})
        sink.close()
    assert broken.attempts == 1
    assert len(caplog.records) == 1
    assert "broken" in caplog.text
    assert "the medium is gone" in caplog.text


@pytest.mark.usefixtures("offline_wandb")
def test_the_configured_sinks_and_metrics_jsonl_get_the_same_numbers(tmp_path: Path) -> None:
    sinks = open_sinks(MetricsConfig(sinks=("tensorboard", "wandb")), tmp_path, "run", {"run": {"name": "run"}})
    for sink in sinks:
        sink.write(1, 1, {"reward": 0.5})
        sink.close()
    for kind in READ:
        assert READ[kind](tmp_path) == [(1, 1, {"reward": 0.5})]


def test_a_sink_whose_package_is_missing_is_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    sinks = open_sinks(MetricsConfig(sinks=("wandb",)), tmp_path, "run", {})
    assert len(sinks) == 1
    assert "wandb is left out" in caplog.text
    for sink in sinks:
        sink.close()


def test_a_run_directory_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(PreflightError, match=r"metrics\.jsonl cannot be written"):
        open_sinks(MetricsConfig(sinks=()), tmp_path, "run", {})


@pytest.mark.usefixtures("offline_wandb")
def test_wandb_is_not_told_the_command_line_and_keeps_the_runs_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_REDIS_URL", f"redis://:{SECRET}@host:6379/0")
    monkeypatch.setattr("sys.argv", ["asyncrl", "train", f"buffer.url=redis://:{SECRET}@host:6379/0"])
    resolved: dict[str, Any] = {"buffer": {"url": "redis://**********@host:6379/0"}}
    ids = set()
    for branch in (1, 2):
        sink = WandbSink(tmp_path, "project", "run", resolved)
        sink.write(1, branch, {"reward": 0.5})
        sink.close()
        ids.add((tmp_path / "wandb_id").read_text())
    assert len(ids) == 1
    assert ids.pop().strip() in " ".join(path.name for path in (tmp_path / "wandb").iterdir())
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
