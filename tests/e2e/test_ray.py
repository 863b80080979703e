"""A whole run on two Ray nodes: one dies with rank and server on it, and the run goes on from its newest checkpoint;
then the head dies, and the command says so and can be started again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.errors import ClusterLost
from tests.e2e.conftest import Start
from tests.support.commands import last_step, metric_lines, summary
from tests.support.left_behind import left_of, processes_of
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
    keys = ("trainer.checkpoint.every_steps=1", "buffer.claim_s=3", "cluster.silence_timeout_s=60")
    train = start("train", "--mode", "sync", "trainer.steps=99", "--ray-address", nodes.address, *keys)
    train.until("step 2", lambda: last_step(run_dir) >= 2)
    died = nodes.replace()
    # What ran on the node trains on until the cluster has found it dead.
    train.until("its end is noticed", lambda: "(1 of 3 restarts)" in train.text())
    noticed_at = last_step(run_dir)
    train.until("a step elsewhere", lambda: last_step(run_dir) > noticed_at)
    nodes.behead()
    assert train.wait() == ClusterLost.exit_code, train.text()
    assert "the head of the Ray cluster is lost" in train.text().splitlines()[-1]
    assert left_of(processes_of(run_dir, "asyncrl.run")) == {}, "ranks and servers of a lost cluster go on training"
    steps = last_step(run_dir) + 1
    again = start("train", "--mode", "sync", f"trainer.steps={steps}", *keys, "--resume")
    assert again.wait() == 0, again.text()
    log = (run_dir / "logs" / "rank-0.log").read_text()
    where = [line for line in log.splitlines() if line.startswith("asyncrl: rank-0 on ")]
    assert len(where) == 2, where
    assert died in where[0]
    assert died not in where[1], "another node trains now"
    assert all(line.endswith("devices 0") for line in where), "rank and server take turns on the node's one device"
    assert "devices 0\n" in (run_dir / "logs" / "server-0.log").read_text()
    assert "devices -\n" in (run_dir / "logs" / "worker-0.log").read_text()
    assert "rank-0 is lost" in train.text()
    facts = summary(run_dir)
    assert (facts["steps"], facts["audit_ok"], facts["weights_equal"]) == (steps, True, True)
    trained = {int(line["step"]) for line in metric_lines(run_dir) if "actor/pg_loss" in line}
    assert trained == set(range(1, steps + 1))
