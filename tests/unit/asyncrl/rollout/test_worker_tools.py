"""A worker whose episodes call tools: groups with tools' turns, what it reports meanwhile, and what a stop leaves."""

from collections.abc import Iterator, Mapping

import pytest

from asyncrl.data.values import Json
from asyncrl.envs.tools.base import ToolAnswer
from asyncrl.envs.tools.parsers import ParsedTurn, ToolCall
from tests.support.event_loop import in_event_loop
from tests.support.scripted_tools import ScriptedTool, never
from tests.support.tool_play import ToolPlay
from tests.support.worker_cluster import GROUP, WorkerCluster, until, worker_cluster


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        made.server()
        made.train(per_version=1)
        yield made


async def with_tool(cluster: WorkerCluster, tool: ScriptedTool) -> ToolPlay:
    """Have the cluster's episodes call `tool` in each turn but the last."""
    play = ToolPlay(tool=tool, read_turn=lambda text: ParsedTurn("", (ToolCall("calc", {"x": 9}),)))
    await play.load()
    cluster.make_environment = play.environment
    return play


@in_event_loop
async def test_a_group_of_episodes_with_tools_is_put_with_the_tools_turns_masked(cluster: WorkerCluster) -> None:
    play = await with_tool(cluster, ScriptedTool())
    async with cluster.working(slots=GROUP, max_turns=3) as (worker, _):
        (group,) = await cluster.lease(1)
        assert worker.facts()["episodes_processing_tools"] == 0
    assert [trajectory.num_turns for trajectory in group.trajectories] == [3] * GROUP
    for trajectory in group.trajectories:
        (row,) = trajectory.rows
        assert 0 < int(row.mask.sum()) < len(row.token_ids) - row.num_prompt_tokens
    await play.deps.resources.close()
    play.tool.check_released()
    assert len(play.tool.arguments) >= 2 * GROUP


@in_event_loop
async def test_a_worker_that_is_stopped_while_tools_run_leaves_none_of_their_instances(cluster: WorkerCluster) -> None:
    async def hangs(arguments: Mapping[str, Json]) -> ToolAnswer:
        await never()
        raise AssertionError

    play = await with_tool(cluster, ScriptedTool(execute=hangs))
    async with cluster.working(slots=GROUP, stop_timeout_s=0.01, park_timeout_s=0.05, max_turns=3) as (worker, _):
        await until(lambda: play.tool.num_running == GROUP)
        facts = worker.facts()
    assert (facts["episodes_processing_tools"], facts["episodes_generating"]) == (GROUP, 0)
    await play.deps.resources.close()
    play.tool.check_released()
    assert len(play.tool.created) == GROUP
    assert cluster.buffer.counts()["in_flight"] == 0
