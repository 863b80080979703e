"""A worker that draws by results: what it played decides what it plays in the next epoch, and its groups say why."""

from collections.abc import Iterator

import pytest

from asyncrl.config.data import CurriculumConfig
from asyncrl.envs.base import Reward
from asyncrl.rollout.group import GroupSettings
from buffer import PassRate
from tests.support.event_loop import in_event_loop
from tests.support.worker_cluster import GROUP, WorkerCluster, until, worker_cluster

NUM_PROMPTS = 10
HARD, EASY = {1, 4, 7}, {2, 5}


@pytest.fixture
def cluster() -> Iterator[WorkerCluster]:
    with worker_cluster() as made:
        yield made


@in_event_loop
async def test_prompts_that_were_always_or_never_right_are_passed_over_in_the_next_epoch(
    cluster: WorkerCluster,
) -> None:
    cluster.server()
    cluster.curriculum = CurriculumConfig(policy="pass_rate", low=0.1, high=0.9, retry_share=0.0)
    seen: dict[int, int] = {}

    def score(index: int) -> Reward:
        seen[index] = seen.get(index, 0) + 1
        right = index in EASY or (index not in HARD and seen[index] % GROUP == 0)
        return Reward(1.0 if right else 0.0)

    cluster.score = lambda row, text: score(row.index)
    cluster.train(per_version=NUM_PROMPTS)
    settings = GroupSettings(renew_every_s=15.0, filters_zero_variance=True, pass_reward=1.0)
    # One group at a time: the next is drawn when the last one's result is in.
    async with cluster.working(slots=1, groups=settings):
        await until(lambda: len(cluster.buffer.draws()[0]) >= NUM_PROMPTS + 3)
        first = await cluster.lease(5)
    draws, rates = cluster.buffer.draws()
    epoch = [draw for draw in draws.values() if draw.position < NUM_PROMPTS]
    later = [draw for draw in draws.values() if draw.position >= NUM_PROMPTS]
    assert sorted(draw.prompt for draw in epoch) == list(range(NUM_PROMPTS))
    assert {draw.reason for draw in epoch} == {"no result yet"}
    # The last of the epoch may still have been on its way when the first of the next was drawn.
    by_result = [draw for draw in later if draw.reason != "no result yet"]
    assert by_result
    assert not {draw.prompt for draw in by_result} & (HARD | EASY)
    assert all(draw.reason.startswith("pass rate 0.333 (1 of 3, ordinal ") for draw in by_result)
    for prompt in HARD | EASY:
        assert rates[prompt] == PassRate(GROUP if prompt in EASY else 0, GROUP, rates[prompt].ordinal)
    for group in first:
        draw = draws[group.ordinal]
        assert group.extra_info == {"index": draw.prompt, "position": draw.position, "drawn_because": draw.reason}
    assert cluster.buffer.audit().ok
