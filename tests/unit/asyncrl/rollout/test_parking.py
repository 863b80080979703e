"""What is parked of a group, what the next owner takes over, and what is lost when it is given back."""

import json
import logging
from collections import Counter

import pytest

from asyncrl.envs.base import Reward
from asyncrl.rollout.episode import EpisodeFailed
from asyncrl.rollout.parking import Parking
from asyncrl.rollout.progress import Progress
from buffer import BufferConfig, CorruptPayload, Fenced, ReplayBuffer, ServerFull, Span, Trajectory
from buffer.answers import Claim
from buffer.partials import UNFINISHED, PartialEpisode, Partials
from buffer.versions import pack
from tests.support.event_loop import in_event_loop

GROUP = 3


def make_buffer(config: BufferConfig | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer.in_memory("run", config or BufferConfig())
    buffer.recover("nonce", None, number=0, limit=5, groups_per_version=10)
    return buffer


def reserve(buffer: ReplayBuffer) -> Claim:
    claim = buffer.reserve("worker")
    assert isinstance(claim, Claim)
    return claim


class Owner:
    """One owner of an ordinal with its episodes."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer, self.claim, self.counts = buffer, reserve(buffer), Counter[str]()
        self.members = [Progress() for _ in range(GROUP)]
        self.parking = Parking(buffer, self.claim, "test", self.members, self.counts)

    def sample(self, index: int, num: int, number: int = 3) -> None:
        """Some tokens of one episode."""
        builder = self.members[index].builder
        if not builder.token_ids:
            builder.begin_row([1, 2])
            self.members[index].next_turn(None)
        builder.append_sampled([5] * num, [-0.5] * num, [Span(pack(1, number), 70, num)])

    def finish(self, index: int) -> None:
        self.members[index].finish(Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})

    def give_back(self) -> None:
        self.buffer.abandon(self.claim, sampled=self.parking.unparked(), data_source="test")


def tokens(buffer: ReplayBuffer) -> dict[str, int]:
    """Tokens by what became of them; those that are held under their own name."""
    ledger = buffer.audit().tokens
    assert ledger.problems() == []
    return {"held": ledger.held, **{fate: spent.tokens for (fate, _), spent in ledger.fates.items()}}


@in_event_loop
async def test_the_next_owner_has_what_was_parked_and_what_came_later_is_lost() -> None:
    first = Owner(make_buffer())
    first.sample(0, 4)
    first.finish(0)
    first.sample(2, 3, number=1)
    assert first.parking.is_behind
    assert await first.parking.park()
    assert not first.parking.is_behind
    first.sample(2, 2)
    first.sample(1, 1)
    assert sorted(first.parking.unparked()) == [1, 2]
    first.give_back()
    assert tokens(first.buffer) == {"held": 7, "failed/abandoned": 3}

    second = Owner(first.buffer)
    await second.parking.resume()
    assert [member.num_sampled for member in second.members] == [4, 0, 3]
    assert second.members[0].trajectory == first.members[0].trajectory
    assert [member.is_resumed for member in second.members] == [False, False, True]
    assert second.members[2].builder.oldest_version == pack(1, 1)
    assert not second.parking.is_behind, "nothing is parked again that is parked already"
    assert second.parking.unparked() == ()
    assert second.counts == {"partials_resumed": 1, "tokens_resumed": 4}


@in_event_loop
async def test_a_group_without_a_token_is_not_parked() -> None:
    owner = Owner(make_buffer())
    assert not owner.parking.is_behind
    assert not await owner.parking.park()
    owner.give_back()
    assert reserve(owner.buffer).parked is None


@in_event_loop
async def test_what_starts_over_is_parked_anew_and_lost_whole_until_then() -> None:
    first = Owner(make_buffer())
    first.sample(0, 5)
    await first.parking.park()
    first.give_back()
    second = Owner(first.buffer)
    await second.parking.resume()
    second.members[0].start_over()
    assert not second.parking.is_behind, "what is parked is better than nothing"
    second.sample(0, 5)
    assert second.parking.is_behind
    assert second.parking.unparked() == (5,)
    await second.parking.park()
    assert second.parking.unparked() == ()


@in_event_loop
async def test_parked_episodes_that_cannot_be_read_start_from_the_prompt_and_are_counted() -> None:
    first = Owner(make_buffer())
    first.sample(0, 5)
    await first.parking.park()
    first.give_back()
    second = Owner(first.buffer)
    assert second.claim.parked is not None
    first.buffer._payloads.delete([second.claim.parked.key])
    with pytest.raises(CorruptPayload):
        first.buffer.fetch_partials(second.claim)
    await second.parking.resume()
    assert second.counts == {"partials_lost": 1}
    assert second.parking.sampled() == ()
    second.sample(0, 2)
    assert second.parking.unparked() == (2,)
    await second.parking.park()
    second.give_back()
    assert reserve(first.buffer).parked is not None, "and what is parked from there is good again"


@in_event_loop
async def test_an_episode_that_says_nothing_of_its_turn_starts_over_and_its_siblings_are_kept() -> None:
    first = Owner(make_buffer())
    for index in (0, 1):
        first.sample(index, 2)
    partials = [member.partial(i) for i, member in enumerate(first.members[:2])]
    assert partials[0] is not None
    assert partials[1] is not None
    lost = PartialEpisode(1, Trajectory(partials[1].trajectory.rows, None, UNFINISHED), done=False)
    first.buffer.park(first.claim, Partials((partials[0], lost)))
    first.give_back()
    second = Owner(first.buffer)
    await second.parking.resume()
    assert [member.num_sampled for member in second.members] == [2, 0, 0]
    assert second.counts == {"partials_resumed": 1, "partials_lost": 1}


@in_event_loop
async def test_a_group_too_large_to_be_parked_is_lost_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner(make_buffer(BufferConfig(max_group_bytes=2000)))
    owner.sample(0, 1000)
    with caplog.at_level(logging.WARNING):
        assert not await owner.parking.park()
        assert not await owner.parking.park()
    assert [record.message for record in caplog.records if "max_group_bytes" in record.message] != []
    assert len(caplog.records) == 1
    assert owner.parking.unparked() == (1000,)
    owner.give_back()
    assert tokens(owner.buffer) == {"held": 0, "failed/abandoned": 1000}


@in_event_loop
async def test_a_full_server_keeps_nothing_and_the_group_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(make_buffer())
    owner.sample(0, 2)

    def full(*args: object) -> bool:
        raise ServerFull("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(owner.buffer, "park", full)
        assert not await owner.parking.park()
    assert owner.parking.is_behind, "it is tried again"
    assert await owner.parking.park()


@in_event_loop
async def test_tokens_that_contradict_each_other_fail_the_group_as_they_would_at_its_end() -> None:
    owner = Owner(make_buffer())
    owner.sample(0, 2)
    owner.members[0].builder.append_sampled([5], [-0.5], [Span(pack(1, 3), 70, 7)])
    with pytest.raises(EpisodeFailed, match="bad_trajectory"):
        await owner.parking.park()


@in_event_loop
async def test_a_lost_claim_parks_nothing() -> None:
    owner = Owner(make_buffer())
    owner.sample(0, 2)
    owner.buffer.abandon(owner.claim)
    with pytest.raises(Fenced):
        await owner.parking.park()


@in_event_loop
async def test_what_is_forgotten_is_gone_for_the_next_owner_and_accounted_as_lost() -> None:
    first = Owner(make_buffer())
    await first.parking.forget()
    first.sample(1, 4)
    await first.parking.park()
    first.sample(1, 2)
    await first.parking.forget()
    assert first.parking.unparked() == (6,)
    first.give_back()
    assert tokens(first.buffer) == {"held": 0, "failed/abandoned": 6}
    second = Owner(first.buffer)
    await second.parking.resume()
    assert second.counts == {}
    assert [member.is_resumed for member in second.members] == [False] * GROUP


@in_event_loop
async def test_states_of_environments_travel_as_plain_data() -> None:
    first = Owner(make_buffer())
    first.sample(0, 2)
    state = {"turn": 2, "tools": {"calc": [1, 2.5, None, "x"]}}
    first.members[0].next_turn(state)
    await first.parking.park()
    first.give_back()
    second = Owner(first.buffer)
    await second.parking.resume()
    assert second.members[0].state is not None
    assert json.loads(json.dumps(dict(second.members[0].state))) == state
