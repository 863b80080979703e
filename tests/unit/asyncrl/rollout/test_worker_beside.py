"""An evaluation beside training: one server plays it, in a part of the slots, and training goes on meanwhile."""

from collections.abc import Iterator

import pytest

from buffer.answers import Leased
from buffer.versions import pack
from tests.support.event_loop import in_event_loop
from tests.support.worker_cluster import GROUP, WorkerCluster, until, worker_cluster


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        for _ in range(2):
            made.server()
        made.train(limit=1, per_version=2)
        made.version = pack(made.branch, 0)
        for server in made.servers:
            server.label = f"{made.branch}.0"
        yield made


def held_out_prompts(cluster: WorkerCluster, server: int) -> int:
    """Requests of held-out prompts that a server has had; their prompts are one digit of the file's first rows."""
    return len(cluster.servers[server].questions())


@in_event_loop
async def test_the_kept_server_alone_plays_held_out_prompts_and_training_goes_to_the_other(
    cluster: WorkerCluster,
) -> None:
    version = pack(cluster.branch, 0)
    evaluation = cluster.buffer.open_evaluation(version, num_prompts=2, group_size=1, server="server-1")
    async with cluster.working(slots=8):
        await until(lambda: evaluation.counts()["ready"] == 2, lambda: str(evaluation.counts()))
        await cluster.lease(2)
        assert held_out_prompts(cluster, 1) == 2
        assert held_out_prompts(cluster, 0) >= 2 * GROUP
    leased = evaluation.lease(cluster.branch, 0, 0, 2)
    assert isinstance(leased, Leased)
    groups = [evaluation.fetch(entry) for entry in leased.entries]
    spans = [span for group in groups for t in group.trajectories for row in t.rows for span in row.spans]
    assert {span.version for span in spans} == {version}


@in_event_loop
async def test_while_the_server_is_not_there_yet_training_goes_on_in_the_other_slots(cluster: WorkerCluster) -> None:
    """Held-out groups wait for the version in at most half of the slots: two servers, of which one is kept."""
    later = pack(cluster.branch, 1)
    evaluation = cluster.buffer.open_evaluation(later, num_prompts=2, group_size=1, server="server-1")
    async with cluster.working(slots=2, server_wait_s=60.0, stop_timeout_s=0.1) as (worker, _):
        await cluster.lease(2)
        await until(lambda: evaluation.counts()["in_flight"] == 1, lambda: str(evaluation.counts()))
        await cluster.lease(2, step=1, number=0)
        assert evaluation.counts()["in_flight"] == 1, "a second one would have taken training's slot"
        assert "server-1: version 1.0 is not the one" in worker._fleet.why(lambda held: held == later, "server-1")
        cluster.buffer.close_evaluation()


@in_event_loop
async def test_without_a_server_of_its_own_an_evaluation_has_all_slots(cluster: WorkerCluster) -> None:
    """The trainer waits for it, and both servers play it."""
    evaluation = cluster.buffer.open_evaluation(pack(cluster.branch, 0), num_prompts=2, group_size=1)
    for server in cluster.servers:
        server.hold = True
    async with cluster.working(slots=2):
        await until(lambda: [held_out_prompts(cluster, server) for server in (0, 1)] == [1, 1])
        assert evaluation.counts()["in_flight"] == 2
        for server in cluster.servers:
            server.release()
        await until(lambda: evaluation.counts()["ready"] == 2, lambda: str(evaluation.counts()))
