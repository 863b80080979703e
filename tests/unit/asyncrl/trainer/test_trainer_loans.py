"""When devices are lent and taken back, with a clock and servers that the test moves."""

import asyncio
from types import SimpleNamespace

import pytest

from asyncrl.errors import WaitTimeout
from asyncrl.trainer.gpus import DedicatedGpus
from asyncrl.trainer.loans import Loans
from asyncrl.trainer.parallel import OneRank
from tests.support.event_loop import in_event_loop
from tests.support.rank_threads import RankThread, RankThreads


class Scene:
    """A trainer that needs 4 groups a step, one lent server and another one. Seconds pass when something happens."""

    def __init__(self, *, lends: bool = True, others: int = 1) -> None:
        self.now_s, self.ready, self.others = 0.0, 0, others
        self.said: list[str] = []
        self.is_serving, self.falls_asleep = False, True
        self.served = asyncio.Event()
        self.loans = Loans(
            SimpleNamespace(
                gpus=self,
                buffer=SimpleNamespace(counts=lambda: {"ready": self.ready}),
                collective=OneRank(),
                config=SimpleNamespace(plan=SimpleNamespace(lends=lends), schedule=SimpleNamespace(groups_per_step=4)),
            ),
            clock=lambda: self.now_s,
        )

    async def lend(self) -> None:
        self.said.append("lend")

    async def recall(self) -> None:
        self.said.append("recall")
        if not self.falls_asleep:
            raise WaitTimeout("test", 1.0, 1.0, "it does not fall asleep")
        self.now_s += 0.5

    def await_serving(self, deadline_s: float) -> bool:
        return self.is_serving

    def num_servers(self) -> tuple[int, int]:
        return 1, self.others

    async def serves_after(self, wake_s: float) -> None:
        """The lent server wakes, and the trainer has noticed."""
        self.now_s += wake_s
        self.is_serving = True
        while self.loans._watching is not None and not self.loans._watching.done():
            await asyncio.wait([self.loans._watching], timeout=0.01)

    def passes(self, seconds: float, groups: int) -> None:
        """Time goes by, and groups come in."""
        self.now_s += seconds
        self.ready += groups

    async def step(self, train_s: float, groups: int) -> None:
        """A batch is trained, while groups come in."""
        self.ready -= 4
        async with self.loans.for_training():
            self.is_serving = False
            self.passes(train_s, groups)
        await self.loans.offer()


@in_event_loop
async def test_a_wait_of_many_switches_is_lent_and_a_short_one_is_not() -> None:
    scene = Scene()
    await scene.loans.begin()
    await scene.serves_after(30.0)  # a start, not a switch
    scene.passes(4.0, 8)
    await scene.step(2.0, groups=0)
    assert scene.said == ["lend", "recall"], "the next batch is ready"
    await scene.step(2.0, groups=2)
    assert scene.said == ["lend", "recall", "lend"], "what a switch takes is not known yet"
    await scene.serves_after(0.5)
    scene.passes(2.0, 2)
    policy = scene.loans.policy
    assert (policy.wake.value, policy.sleep.value) == (0.5, 0.5)

    await scene.step(2.0, groups=3)
    assert scene.said[-1] == "recall", "one group is missing, and comes in about a switch's time"
    scene.passes(1.0, 1)
    await scene.step(2.0, groups=0)
    assert scene.said[-1] == "lend"
    news = scene.loans.drain()
    assert news["perf/lend/switches"] == 2.0
    assert news["perf/lend/wake_s"] == 0.5
    assert {"perf/lend/because/unmeasured", "perf/lend/because/ready", "perf/lend/because/short_wait"} <= set(news)
    assert scene.loans.drain() == {}


@in_event_loop
async def test_rates_are_measured_apart_and_a_wait_asks_with_what_has_come_in_since() -> None:
    scene = Scene()
    await scene.loans.begin()
    await scene.serves_after(0.0)
    scene.passes(10.0, 30)
    scene.ready -= 4
    async with scene.loans.for_training():
        scene.passes(20.0, 20)
    assert scene.loans.policy.together.per_s() == pytest.approx(3.0)
    assert scene.loans.pays(4)
    await scene.loans.lend()
    scene.passes(5.0, 0)  # still waking: these seconds are the others' alone
    await scene.serves_after(5.0)
    assert scene.loans.policy.alone.per_s() == pytest.approx(20 / 30.5, rel=0.05)


@in_event_loop
async def test_servers_that_never_wake_in_time_are_not_woken_for_every_wait() -> None:
    scene = Scene()
    await scene.loans.begin()
    lent = 0
    for _ in range(40):
        scene.passes(2.0, 4)  # the others' groups alone
        await scene.step(0.1, groups=0)
        lent += scene.loans._is_lent
    assert scene.loans.policy.wake.value is not None
    assert 1 <= lent <= 8, "now and then it is tried again"


@in_event_loop
async def test_devices_are_given_back_when_training_fails_and_when_a_server_does_not_sleep() -> None:
    scene = Scene()
    await scene.loans.begin()
    with pytest.raises(ZeroDivisionError):
        async with scene.loans.for_training():
            raise ZeroDivisionError
    assert scene.said == ["lend", "recall", "lend"]
    scene = Scene()
    await scene.loans.begin()
    scene.falls_asleep = False
    with pytest.raises(WaitTimeout):
        async with scene.loans.for_training():
            raise AssertionError("a server still uses the device")


@in_event_loop
async def test_what_a_server_watch_finds_wrong_is_raised_and_not_lost() -> None:
    scene = Scene()

    def lost(deadline_s: float) -> bool:
        raise ConnectionError("the log is lost")

    scene.await_serving = lost
    await scene.loans.begin()
    assert scene.loans._watching is not None
    await asyncio.wait([scene.loans._watching])
    with pytest.raises(ConnectionError, match="the log is lost"):
        async with scene.loans.for_training():
            raise AssertionError("nobody knows who has the devices")


@in_event_loop
async def test_an_evaluation_is_lent_for_unless_it_is_shorter_than_a_few_switches() -> None:
    scene = Scene()
    await scene.loans.begin()
    await scene.step(1.0, groups=8)
    scene.ready = 8
    await scene.step(1.0, groups=0)
    assert scene.said[-1] == "recall"
    async with scene.loans.for_evaluation():
        assert scene.said[-1] == "lend"
        await scene.serves_after(0.5)
        scene.passes(0.1, 0)
    await scene.step(1.0, groups=8)
    async with scene.loans.for_evaluation():
        assert scene.said[-1] == "recall", "it takes less than a switch"


@in_event_loop
async def test_where_nothing_is_lent_nothing_is_asked_or_measured() -> None:
    scene = Scene(lends=False)
    await scene.loans.begin()
    await scene.step(1.0, groups=0)
    async with scene.loans.for_evaluation():
        pass
    assert not scene.loans.pays(4)
    assert scene.said == []
    assert scene.loans.drain() == {}


@in_event_loop
async def test_where_all_servers_are_lent_they_sleep_only_while_a_batch_is_there() -> None:
    scene = Scene(others=0)
    await scene.loans.begin()
    scene.ready = 8
    await scene.step(1.0, groups=0)
    assert scene.said[-1] == "recall", "two batches one after the other need no switch between them"
    await scene.step(1.0, groups=0)
    assert scene.said == ["lend", "recall", "lend"]


def test_two_ranks_lend_and_take_back_together_and_one_of_them_asks() -> None:
    first, second = Scene(), Scene()
    ranks = RankThreads(2)

    def play(rank: RankThread) -> list[str]:
        scene = (first, second)[rank.rank]
        scene.loans._ranks = rank
        if rank.rank == 1:
            scene.loans._gpus = DedicatedGpus()

        async def steps() -> None:
            await scene.loans.begin()
            for groups in (8, 0):
                await scene.step(1.0, groups=groups)
            async with scene.loans.for_evaluation():
                pass

        asyncio.run(steps())
        return scene.said

    said = ranks.run(play)
    assert said == [["lend", "recall", "lend"], []]
    assert first.loans._is_lent
    assert second.loans._is_lent
    assert second.loans.drain() == {}
