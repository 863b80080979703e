"""Which answers count as ended without a batch, and how long they had got."""

import asyncio
import json
from typing import cast

import pytest

from asyncrl.data.rows import PromptRow
from asyncrl.envs.base import Reward
from asyncrl.metrics.console import FOR_THE_SUMMARY
from asyncrl.report.answer_lengths import AnswerLengths
from asyncrl.report.rollout_facts import ENDED, of_reports
from asyncrl.rollout.episode import EpisodeFailed, EpisodePlayer, EpisodeTask, PromptMemo
from asyncrl.rollout.group import GroupPlayer, GroupSettings
from asyncrl.rollout.lengths import EndedLengths
from asyncrl.rollout.pacing import Slots
from asyncrl.rollout.progress import Progress
from asyncrl.rollout.work import Work
from buffer import BufferConfig, Claim, ReplayBuffer, Span, StalenessConfig, Trajectory
from buffer.versions import pack
from tests.support.event_loop import in_event_loop

V0 = pack(1, 0)
ROW = PromptRow(0, "digits", ({"role": "user", "content": "1"},), None, {})


def grow(progress: Progress, tokens: int) -> None:
    if not progress.builder.token_ids:
        progress.builder.begin_row([1])
    progress.builder.append_sampled([5] * tokens, [-0.5] * tokens, [Span(V0, 70, tokens)])


def member(tokens: int, *, finished: bool) -> Progress:
    progress = Progress()
    grow(progress, tokens)
    if finished:
        progress.finish(Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})
    return progress


MEMBERS = [member(9, finished=True), member(30, finished=False)]


def of(lengths: EndedLengths) -> dict[str, AnswerLengths]:
    return dict(of_reports({"worker": {ENDED: lengths.as_fact()}}).ended)


@pytest.mark.parametrize(
    ("outcome", "is_parked", "counts"),
    [
        ("ready", False, False),
        ("done", False, False),
        ("stale", True, True),
        ("waiting", True, True),
        ("dead", False, True),
        ("doomed", False, True),
        ("fenced", False, True),
        ("halted", True, False),
        ("given_up", False, True),
    ],
)
def test_answers_have_ended_unless_their_group_is_in_or_somebody_goes_on_from_them(
    outcome: str, is_parked: bool, counts: bool
) -> None:
    lengths = EndedLengths()
    lengths.note(outcome, "digits", MEMBERS, is_parked=is_parked)
    expected = AnswerLengths()
    expected.add([9])
    expected.add([30], cut=True)
    assert of(lengths) == ({"digits": expected} if counts else {})


def test_an_answer_without_a_known_token_makes_the_mean_a_lower_bound() -> None:
    lengths = EndedLengths()
    lengths.note("doomed", "digits", [member(9, finished=True), Progress()], is_parked=False)
    estimate = of(lengths)["digits"].mean()
    assert estimate is not None
    assert (estimate.tokens, estimate.at_least) == (9.0, True)


def test_a_report_stays_small_and_is_not_shown_while_the_run_goes_on() -> None:
    lengths = EndedLengths()
    for tokens in range(1, 3000, 3):
        lengths.note("stale", "digits", [member(tokens, finished=True)], is_parked=False)
    assert len(lengths.as_fact()) < 1000
    assert ENDED in FOR_THE_SUMMARY


class FailingPlayer:
    """The first episode finishes, the second fails when the others have got somewhere."""

    async def cut(self, progress: Progress) -> None:
        raise AssertionError("nothing is at a server")

    async def play(self, task: EpisodeTask, progress: Progress, memo: PromptMemo) -> Trajectory:
        grow(progress, 10 * (task.episode + 1))
        await asyncio.sleep(0)
        if task.episode == 0:
            return progress.finish(Reward(1.0), finish_reason="stop", num_turns=1, extra_info={})
        await asyncio.sleep(0)
        if task.episode == 1:
            raise EpisodeFailed("reward_failed", "boom")
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


@in_event_loop
async def test_a_group_that_fails_reports_its_finished_and_its_cut_answers() -> None:
    buffer = ReplayBuffer.in_memory("run", BufferConfig(), StalenessConfig())
    buffer.recover("nonce", None, number=0, limit=1, groups_per_version=4)
    player = GroupPlayer(cast(EpisodePlayer, FailingPlayer()), Slots(8), GroupSettings(renew_every_s=15.0))
    for stream in ("eval", "train"):
        claim = buffer.reserve("worker")
        assert isinstance(claim, Claim)
        assert await player.play(Work(buffer, claim, ROW, stream, 3)) == "waiting"
    found = json.loads(player.lengths.as_fact())["digits"]
    assert (found["finished"], found["cut"]) == ({"12": 1}, {"24": 1, "32": 1}), "held-out answers are not counted"
    failed = buffer.audit().tokens.fates["failed/reward_failed", "digits"]
    assert (failed.trajectories, failed.tokens) == (6, 120)
