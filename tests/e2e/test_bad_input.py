"""What a user gets wrong: one clear message that says what to do, an exit code, and nothing lost."""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from asyncrl.errors import CheckpointError, ConfigError, DataError, PreflightError
from buffer import BufferConfig, ReplayBuffer
from tests.support.commands import CONFIG, ROOT, Command
from tests.support.left_behind import left_of, processes_of
from tests.support.redis_server import running_redis

BRIDGE = 3  # what the bridges refuse: Redis, the machine


def asyncrl(*arguments: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "asyncrl", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        preexec_fn=limit,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def assert_refused(done: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    """One message with these words, no trace, this exit code."""
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    for word in words:
        assert word in done.stderr


def write_parquet(path: Path, **columns: list[object]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def prompts(column: str) -> dict[str, list[object]]:
    return {
        column: [[{"role": "user", "content": "sort 31"}]],
        "data_source": ["sort_digits"],
        "reward_model": [{"ground_truth": "13"}],
    }


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path: Path) -> None:
    done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}", "actor.learning_rate=1e-3", "rollout.nn=4")
    assert_refused(done, ConfigError.exit_code, "actor.learning_rate", "actor.lr", "rollout.nn", "rollout.n")


def test_a_key_of_another_system_is_answered_with_ours() -> None:
    assert_refused(asyncrl("train", str(CONFIG), "max_off_policy_steps=4"), ConfigError.exit_code, "staleness.limit")


def test_a_missing_config_and_a_missing_data_file_are_named(starter: None, tmp_path: Path) -> None:
    assert_refused(asyncrl("train", str(tmp_path / "no.yaml")), ConfigError.exit_code, "no.yaml")
    missing = tmp_path / "no.parquet"
    done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}", "starter=null", f"data.train_files=[{missing}]")
    assert_refused(done, DataError.exit_code, "no.parquet")


def test_a_file_without_the_prompt_column_is_refused_with_the_columns_it_has(starter: None, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "wrong.parquet", **prompts("question_text"))
    done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}", "starter=null", f"data.train_files=[{path}]")
    assert_refused(done, DataError.exit_code, "wrong.parquet", "prompt")


def test_a_file_without_rows_is_refused_before_anything_starts(starter: None, tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "empty.parquet", **{name: values[:0] for name, values in prompts("prompt").items()})
    done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}", "starter=null", f"data.train_files=[{path}]")
    assert_refused(done, DataError.exit_code, "empty.parquet", "no rows")


def test_a_wrong_password_is_refused_without_showing_it(starter: None, tmp_path: Path) -> None:
    with running_redis(password="right-password") as server:
        url = server.url.replace("right-password", "wrong-password")
        done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}", f"buffer.url={url}")
    assert_refused(done, BRIDGE, "password")
    assert "wrong-password" not in done.stderr + done.stdout


def test_a_redis_that_evicts_is_refused_with_the_fix(starter: None, tmp_path: Path) -> None:
    with running_redis(maxmemory="64mb", maxmemory_policy="allkeys-lru") as server:
        done = asyncrl("serve-rollout", str(CONFIG), f"run.dir={tmp_path}", f"buffer.url={server.url}")
    assert_refused(done, BRIDGE, "allkeys-lru", "noeviction")


def test_a_port_in_use_is_named(starter: None, tmp_path: Path) -> None:
    """B179: a command that raises leaves nothing behind, its Redis neither."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = asyncrl("serve-rollout", str(CONFIG), f"run.dir={tmp_path}", f"inference.base_port={port}")
    assert_refused(done, PreflightError.exit_code, str(port))
    assert left_of(processes_of(tmp_path)) == {}


def test_a_model_without_a_chat_template_is_refused_with_what_to_do(starter: None, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ROOT / "runs/starter/sort_digits/model", model)
    (model / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}", "starter=null", f"model.path={model}")
    assert_refused(done, ConfigError.exit_code, "chat template")


def test_a_mode_that_does_not_exist_is_answered_with_those_that_do() -> None:
    assert_refused(asyncrl("train", str(CONFIG), "--mode", "async"), ConfigError.exit_code, "separate_async", "sync")


def test_a_run_that_exists_is_not_begun_anew(starter: None, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "1.5-step5").mkdir(parents=True)
    done = asyncrl("train", str(CONFIG), f"run.dir={tmp_path}")
    assert_refused(done, ConfigError.exit_code, "--resume", "run.name")


def test_a_full_disk_at_a_checkpoint_ends_the_run_and_loses_no_group(starter: None, tmp_path: Path) -> None:
    """B178: the exit code is the rank's, and the last line says at which step it was."""
    small = ("schedule.groups_per_step=4", "rollout.n=4", "metrics.sinks=[]", "data.val_files=[]")
    with running_redis(appendonly=True) as server:
        keys = (str(CONFIG), f"run.dir={tmp_path}", "run.name=full", f"buffer.url={server.url}", *small)
        rollout = Command(["serve-rollout", *keys], tmp_path / "rollout.out")
        try:
            done = asyncrl("train", *keys, "trainer.checkpoint.every_steps=1", limit=files_of_at_most_200_kb)
            assert_refused(done, CheckpointError.exit_code, "checkpoint", str(tmp_path))
            assert re.search(r" This was after step [1-9] of 80\.$", done.stderr.rstrip().splitlines()[-1])
            assert not list((tmp_path / "checkpoints").glob("[0-9]*")), "no half checkpoint is left"
            buffer = ReplayBuffer.connect(server.url, "full", BufferConfig())
            audit = buffer.audit()
            buffer.close()
            assert audit.ok
            assert audit.identity["leased"] > 0, "what was trained waits for the checkpoint that never came"
            assert audit.identity["consumed"] == 0
        finally:
            rollout.close()


def files_of_at_most_200_kb() -> None:
    """In the child: a file that grows past this fails to be written, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
