"""`asyncrl sweep` with commands that are real processes but train nothing: what is started, resumed and told."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl import cli

COMMAND = """#!{python}
import json, os, pathlib, sys
_, module, asyncrl, name, config, *rest = sys.argv
keys = dict(text.split("=", 1) for text in rest if "=" in text)
directory = pathlib.Path(keys["run.dir"])
with open({log!r}, "a") as log:
    log.write(json.dumps([name, keys, "--resume" in rest]) + "\\n")
if name == "serve-rollout":
    sys.exit(0)
if keys["staleness.limit"] == os.environ.get("FAILS"):
    (directory / "metrics.jsonl").write_text("")
    sys.exit("out of luck")
tokens = 100.0 * (1 + int(keys["staleness.limit"]))
line = {{"step": 1, "branch": 1, "time_s": 1.0, "critic/rewards/mean": 0.5, "timing_s/step": 2.0,
        "perf/total_num_tokens": tokens, "buffer/num_groups": 4, "buffer/lag_mean": 1}}
(directory / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
summary = {{"heldout_after": 0.25 + int(keys["run.seed"]) / 4, "stale_groups": 0, "groups": {{"consumed": 4}}}}
(directory / "summary.json").write_text(json.dumps(summary))
(directory / "outcome.json").write_text(json.dumps({{"reason": "finished"}}))
"""


class Sweep:
    """A sweep over two limits with two seeds."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log, self.root, self.config = directory / "log.jsonl", directory / "sweep", directory / "run.yaml"
        command = directory / "python"
        command.write_text(COMMAND.format(python=sys.executable, log=str(self.log)))
        command.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(command))
        self.config.write_text("run: {name: base}\nrollout: {n: 2}\n")

    def run(self, *arguments: str) -> int:
        self.log.write_text("")
        overrides = ["staleness.limit=0,2", "actor.lr=1e-4"]
        return cli.main(["sweep", str(self.config), *overrides, "--seeds", "2", "--dir", str(self.root), *arguments])

    def started(self) -> list[tuple[str, dict[str, str], bool]]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    return Sweep(tmp_path, monkeypatch)


def test_every_variant_is_a_run_of_both_commands_and_the_table_has_its_quality(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.run("--json", "--at-once", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["label"], row["held_out"], row["tokens_per_s"]) for row in found["rows"]] == [
        ("staleness.limit=0", 0.375, 50.0),
        ("staleness.limit=2", 0.375, 150.0),
    ]
    assert len(found["runs"]) == 4
    started = sweep.started()
    assert sorted(name for name, _, _ in started) == ["serve-rollout"] * 4 + ["train"] * 4
    keys = [keys for name, keys, _ in started if name == "train"]
    assert {(one["staleness.limit"], one["run.seed"], one["actor.lr"]) for one in keys} == {
        (limit, seed, "1e-4") for limit in ("0", "2") for seed in ("0", "1")
    }
    assert len({one["run.dir"] for one in keys}) == len({one["run.name"] for one in keys}) == 4


def test_a_mode_that_shares_devices_has_one_command(sweep: Sweep) -> None:
    assert sweep.run("--mode", "colocate_async") == 0
    assert [name for name, _, _ in sweep.started()] == ["train"] * 4


def test_finished_variants_are_not_run_again_and_a_failed_one_goes_on(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILS", "2")
    assert sweep.run("--json") == 1
    printed = capsys.readouterr()
    assert [row["label"] for row in json.loads(printed.out)["rows"]] == ["staleness.limit=0"]
    assert len(json.loads(printed.out)["failed"]) == 2
    assert "train ended with exit code 1" in printed.err
    assert "out of luck" in printed.err

    monkeypatch.delenv("FAILS")
    assert sweep.run() == 0
    trained = [(keys["staleness.limit"], resumes) for name, keys, resumes in sweep.started() if name == "train"]
    assert trained == [("2", True), ("2", True)]
    printed = capsys.readouterr()
    assert "staleness.limit=2" in printed.out
    assert printed.err.count("finished before") == 2

    assert sweep.run() == 0
    assert sweep.started() == []


def test_a_wrong_key_is_told_before_anything_is_started(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.run("rollout.m=3") == 2
    assert "rollout.m" in capsys.readouterr().err
    assert sweep.started() == []


def test_a_sweep_that_is_terminated_takes_its_runs_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    command = tmp_path / "python"
    command.write_text(f"#!/bin/sh\necho $$ > {pids}\nexec sleep 600\n")
    command.chmod(0o755)
    config = tmp_path / "run.yaml"
    config.write_text("run: {name: base}\nmode: colocate_async\n")
    script = (
        f"import sys; sys.executable = {str(command)!r}\n"
        "from asyncrl import cli\n"
        f"sys.exit(cli.main(['sweep', {str(config)!r}, '--dir', {str(tmp_path / 'sweep')!r}]))"
    )
    sweep = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    reader = os.open(pids, os.O_RDWR)
    assert select.select([reader], [], [], 60)[0], sweep.poll()
    run = int(os.read(reader, 100))
    os.close(reader)
    sweep.send_signal(signal.SIGTERM)
    assert sweep.wait(60) == cli.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(run, 0)
    assert b"interrupted" in sweep.communicate()[1]
