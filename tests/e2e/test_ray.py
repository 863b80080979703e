"""A whole run on two Ray nodes: one dies with rank and server on it, and the run goes on from its newest checkpoint."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.support.commands import last_step, metric_lines, summary
from tests.support.ray_nodes import RayNodes


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayNodes]:
    with RayNodes() as started:
        for name, value in started.env.items():
            monkeypatch.setenv(name, value)
        yield started


@pytest.mark.timeout(600)  # the nodes alone take half a minute to start on two busy cores
def test_a_run_survives_the_death_of_the_node_that_trains(
    starter: None, nodes: RayNodes, start: Start, tmp_path: Path
) -> None:
    """B186: the supervisor finds the dead node by itself, says who was lost, and starts again elsewhere."""
    run_dir = tmp_path / "run"
    keys = ("trainer.steps=5", "trainer.checkpoint.every_steps=1", "buffer.claim_s=3", "cluster.silence_timeout_s=60")
    train = start("train", "--mode", "sync", "--ray-address", nodes.address, *keys)
    train.until("step 2", lambda: last_step(run_dir) >= 2)
    died = nodes.replace()
    assert train.wait() == 0, train.text()
    log = (run_dir / "logs" / "rank-0.log").read_text()
    where = [line for line in log.splitlines() if line.startswith("asyncrl: rank-0 on ")]
    assert len(where) == 2, where
    assert died in where[0]
    assert died not in where[1], "another node trains now"
    assert all(line.endswith("devices 0") for line in where), "rank and server take turns on the node's one device"
    assert "devices 0\n" in (run_dir / "logs" / "server-0.log").read_text()
    assert "devices -\n" in (run_dir / "logs" / "worker-0.log").read_text()
    assert "rank-0 is lost" in train.text()
    assert "(1 of 3 restarts)" in train.text()
    steps = [int(line["step"]) for line in metric_lines(run_dir) if "actor/pg_loss" in line]
    assert steps == list(range(1, 6))
    assert summary(run_dir)["audit_ok"] is True
    assert summary(run_dir)["weights_equal"] is True
