"""The first thing a newcomer runs: it learns, it says so, and what it leaves behind can be used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.schedule import MODES
from tests.support.commands import CONFIG, ROOT, metric_lines

SUMMARY = (
    "heldout_before", "heldout_after", "steps", "versions", "wall_s", "lag_histogram", "lag_limit", "waits_s",
    "bytes_per_version", "bytes_per_changed_element", "audit_ok", "weights_equal", "stale_groups", "dead_groups",
)  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of one quickstart."""
    directory = tmp_path_factory.mktemp("quickstart") / "run"
    done = subprocess.run(
        ["./scripts/quickstart", "--seed", "0", "--run-dir", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.rstrip().splitlines()[-1] == str(directory / "summary.json")
    return directory


def asyncrl(run_dir: Path, command: str, *arguments: str) -> str:
    """Run a command on the finished run; what it printed."""
    keys = (f"run.dir={run_dir}", "run.name=quickstart")
    words = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl", *words, str(CONFIG), *keys, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_held_out_score_rises_clearly_and_every_account_balances(run_dir: Path) -> None:
    facts = json.loads((run_dir / "summary.json").read_text())
    assert set(SUMMARY) <= set(facts)
    assert facts["heldout_after"] >= 0.85
    assert facts["heldout_after"] - facts["heldout_before"] >= 0.4
    assert facts["audit_ok"] is True
    assert facts["weights_equal"] is True
    assert max(map(int, facts["lag_histogram"])) <= facts["lag_limit"] == MODES["separate_async"].limit
    assert sum(facts["lag_histogram"].values()) == facts["steps"] * 32


def test_the_run_directory_holds_what_the_readme_promises(run_dir: Path) -> None:
    for name in ("metrics.jsonl", "config.yaml", "summary.json"):
        assert (run_dir / name).stat().st_size > 0
    assert (run_dir / "reward_and_lag.png").read_bytes().startswith(b"\x89PNG")
    assert list((run_dir / "checkpoints").glob("[0-9]*"))
    before, after = (
        [json.loads(line) for line in (run_dir / "samples" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("before", "after")
    )
    assert before
    assert [sample["prompt"] for sample in before] == [sample["prompt"] for sample in after]
    assert any("timing_s/wait/trainer waits for fresh groups" in line for line in metric_lines(run_dir))


def test_transformers_loads_the_export_and_it_sorts(run_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run_dir / "export")
    tokenizer = AutoTokenizer.from_pretrained(run_dir / "export")
    chat = [{"role": "user", "content": "sort 312"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=9, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "123"


def test_audit_checkpoints_and_buffer_tell_the_same_story(run_dir: Path) -> None:
    facts = json.loads((run_dir / "summary.json").read_text())
    audit = json.loads(asyncrl(run_dir, "audit", "--json"))
    assert audit["ok"] is True
    assert audit["identity"]["consumed"] == facts["steps"] * 32
    assert json.loads(asyncrl(run_dir, "buffer status", "--json"))["counts"] == audit["identity"]
    assert audit["tokens"]["fates"]["trained"]
    rows = json.loads(asyncrl(run_dir, "checkpoint verify", "--json"))
    assert rows[0]["step"] == str(facts["steps"])
    assert {row["state"] for row in rows} == {"complete"}


def test_the_export_scores_in_eval_as_it_did_in_the_run(run_dir: Path) -> None:
    facts = json.loads((run_dir / "summary.json").read_text())
    scores = json.loads(asyncrl(run_dir, "eval", "--model", str(run_dir / "export"), "--json"))
    assert scores["val-core/sort_digits/reward/mean@4"] == pytest.approx(facts["heldout_after"], abs=0.05)
    assert scores["val-core/sort_digits/reward/maj@4/mean"] >= 0.85, "most answers agree on the right one"
    assert scores["num_failed"] == 0


def test_a_checkpoint_exports_to_the_weights_that_the_run_exported(run_dir: Path, tmp_path: Path) -> None:
    asyncrl(run_dir, "export", "--output", str(tmp_path / "export"))
    of_run, of_checkpoint = (
        AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (run_dir / "export", tmp_path / "export")
    )
    assert all(of_run[name].equal(of_checkpoint[name]) for name in of_run)


def test_doctor_and_the_printed_config_run_as_the_readme_says(run_dir: Path) -> None:
    assert "Everything a run needs is there." in asyncrl(run_dir, "doctor")
    assert "staleness:" in asyncrl(run_dir, "train", "--print-config")
