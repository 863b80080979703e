"""The real SGLang in place of the local engine: the quickstart's task is learned, and the server's weights are the
trainer's, bit for bit, whoever started the server.

`pytest -s` prints the figures of docs/sglang.md.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from asyncrl.inference.launcher import LaunchSpec, command, reserve_port
from asyncrl.run.server_parts import server_name
from asyncrl.schedule import MODES
from tests.support.commands import CONFIG, ROOT, Command, summary
from tests.support.inference_servers import wait_for
from tests.support.sglang_python import skip_without_sglang, warm_python
from tests.support.sglang_run import checksums, expected_checksums

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(1500)]

DEADLINE_S = 1200.0


@pytest.fixture(autouse=True)
def sglang(starter: None) -> None:
    skip_without_sglang()


@contextmanager
def both_commands(run_dir: Path, *keys: str) -> Iterator[tuple[Command, Command]]:
    """The rollout cluster and the trainer of one run, as processes."""
    run_dir.mkdir(parents=True)
    ours = [str(CONFIG), f"run.dir={run_dir}", f"run.name={run_dir.name}", "inference.engine=sglang", *keys]
    started: list[Command] = []
    try:
        for name in ("serve-rollout", "train"):
            started.append(Command([name, *ours], run_dir / f"{name}.out"))
        yield started[0], started[1]
    finally:
        for one in started:
            one.close()


def finished(run_dir: Path, *keys: str) -> dict[str, Any]:
    """Run both commands to their ends; what the summary says."""
    with both_commands(run_dir, *keys) as (rollout, train):
        assert train.wait(DEADLINE_S) == 0, train.text()[-4000:]
        assert rollout.wait(60.0) == 0, rollout.text()[-4000:]
    facts: dict[str, Any] = summary(run_dir)
    servers = json.loads((run_dir / "rollout" / "facts.json").read_text())["speeds"]
    print(json.dumps({"keys": keys, **facts, "speeds": servers}))
    return facts


def test_the_quickstart_with_sglang_learns_over_thirty_versions(tmp_path: Path) -> None:
    facts = finished(tmp_path / "run", f"inference.python={warm_python()}", "trainer.steps=40", "metrics.sinks=[]")
    assert facts["versions"] >= 30
    assert facts["heldout_after"] - facts["heldout_before"] >= 0.2
    assert facts["weights_equal"] is True, "the digest that the loader measured is the trainer's"
    assert facts["audit_ok"] is True
    assert max(map(int, facts["lag_histogram"])) <= MODES["separate_async"].limit


def test_a_server_that_was_started_by_hand_is_adopted_and_holds_the_export_bit_for_bit(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stage, port = tmp_path / "stage", reserve_port("127.0.0.1", 0)
    request.addfinalizer(port.close)
    name = server_name(0, kind="adopted")
    spec = LaunchSpec(
        *(ROOT / "runs/starter/sort_digits/model", "127.0.0.1", port.number, stage / name, "bfloat16"),
        **{"max_running_requests": 64, "context_length": 64, "seed": 0, "python": warm_python()},
    )
    by_hand = command("sglang", spec)
    process = subprocess.Popen(by_hand.argv, env={**os.environ, **by_hand.env}, cwd=ROOT)
    try:

        def answers() -> bool:
            assert process.poll() is None, f"SGLang ended with {process.returncode}"
            with suppress(httpx.TransportError):
                return httpx.get(f"{spec.url}/model_info", timeout=10).status_code == 200
            return False

        wait_for("SGLang answers", answers, 300)
        facts = finished(
            tmp_path / "run",
            *("inference.servers=0", f"inference.urls=[{spec.url}]", f"weightsync.stage_dir={stage}"),
            *("trainer.steps=5", "schedule.groups_per_step=8", "rollout.n=8", "eval.n=1", "metrics.sinks=[]"),
        )
        assert facts["versions"] >= 5
        assert facts["weights_equal"] is True
        assert facts["audit_ok"] is True
        exported = load_file(tmp_path / "run" / "export" / "model.safetensors")
        words = {name: tensor.to(torch.bfloat16) for name, tensor in exported.items()}
        assert checksums(spec.url)[0] == expected_checksums(words), "SGLang's own checksum of every parameter"
    finally:
        process.terminate()
        process.wait(60)
