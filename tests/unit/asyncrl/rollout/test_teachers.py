"""What teachers say of sampled tokens becomes columns; a teacher that fails costs a reward and never gives a number."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from asyncrl.config import TeacherConfig
from asyncrl.errors import ServerError, WaitTimeout
from asyncrl.inference.errors import MalformedAnswer, ServerUnavailable
from asyncrl.rollout import teacher as module
from asyncrl.rollout.teacher import MAX_ROWS, Teacher
from asyncrl.rollout.teachers import Teachers
from buffer import Row, Span, Trajectory
from tests.support.event_loop import in_event_loop
from tests.support.scripted_teacher import ScriptedTeacher, logprob

GONE = ServerUnavailable("connection refused")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)


def row(ids: Sequence[int] = (5, 6, 7, 8, 9), sampled: Sequence[int] = (2, 4)) -> Row:
    """A row whose tokens at the places in `sampled` were sampled."""
    mask = np.isin(np.arange(len(ids)), sampled)
    logprobs = np.where(mask, -0.5, 0).astype(np.float32)
    spans = (Span(0, 1, len(sampled)),) if sampled else ()
    return Row(np.array(ids, dtype=np.uint32), mask, logprobs, spans, min(sampled, default=len(ids)))


def trajectory(*rows: Row) -> Trajectory:
    return Trajectory(rows=rows or (row(),), reward=1.0)


class Scene:
    """One teacher of a scripted server."""

    def __init__(self, server: ScriptedTeacher, name: str = "big", **settings: object) -> None:
        config = TeacherConfig(name=name, urls=("http://teacher",), **settings)  # type: ignore[arg-type]  # by name
        self.server, self.counts = server, Counter[str]()
        self.teacher = Teacher(config, [server.as_client()], 1000, self.counts)

    async def score(self, *trajectories: Trajectory) -> list[Trajectory]:
        teachers = Teachers([self.teacher])
        return list(await asyncio.gather(*(teachers.score("sums", one) for one in trajectories)))


@in_event_loop
async def test_sampled_tokens_get_the_teachers_logprob_and_all_others_zero() -> None:
    scene = Scene(ScriptedTeacher())
    (scored,) = await scene.score(trajectory())
    (column,) = (scored.rows[0].columns[name] for name in scored.rows[0].columns)
    assert list(scored.rows[0].columns) == ["teacher/big/logprobs"]
    assert column.tolist() == [0, 0, logprob(7, 2), 0, logprob(9, 4)]
    assert column.dtype == np.float32
    assert scored.reward == 1.0
    assert scene.counts == {"teacher_big_scored": 1}


@in_event_loop
async def test_the_likeliest_tokens_have_columns_of_their_own() -> None:
    (scored,) = await Scene(ScriptedTeacher(), top_k=2).score(trajectory())
    columns = scored.rows[0].columns
    assert columns["teacher/big/topk_ids"].tolist() == [[0, 0], [0, 0], [2, 3], [0, 0], [4, 5]]
    assert columns["teacher/big/topk_ids"].dtype == np.int32
    assert columns["teacher/big/topk_logprobs"].tolist() == [[0, 0], [0, 0], [-2, -3], [0, 0], [-4, -5]]


@in_event_loop
async def test_each_row_is_scored_up_to_its_last_sampled_token_and_a_row_without_one_is_not_sent() -> None:
    scene = Scene(ScriptedTeacher())
    (scored,) = await scene.score(trajectory(row(sampled=(1, 2)), row(sampled=()), row(sampled=(0,))))
    assert scene.server.requests == [[[5, 6, 7]]]
    assert [one.columns["teacher/big/logprobs"].any() for one in scored.rows] == [True, False, False]


@in_event_loop
async def test_rows_that_wait_while_requests_are_in_flight_go_together_in_the_next_one() -> None:
    server = ScriptedTeacher()
    server.gate.clear()
    scene = Scene(server, in_flight=1)
    many = [trajectory()] * (MAX_ROWS + 3)
    scoring = asyncio.create_task(scene.score(*many))
    await server.asked.wait()
    server.gate.set()
    scored = await scoring
    assert [len(rows) for rows in server.requests] == [1, MAX_ROWS, 2]
    assert all("teacher/big/logprobs" in one.rows[0].columns for one in scored)


@in_event_loop
async def test_a_server_that_fails_is_asked_again() -> None:
    scene = Scene(ScriptedTeacher([GONE, MalformedAnswer("shape", "nonsense"), None]))
    (scored,) = await scene.score(trajectory())
    assert scored.reward == 1.0
    assert len(scene.server.requests) == 3


@in_event_loop
async def test_a_teacher_that_fails_for_good_leaves_no_column_and_no_reward_but_its_reason() -> None:
    """B117: what could not be scored is excluded and counted, not trained on as a number."""
    scene = Scene(ScriptedTeacher([GONE] * 4))
    (scored,) = await scene.score(trajectory())
    assert scored.reward is None
    assert scored.reward_error == "teacher big: failed: 4 attempts; the last: connection refused"
    assert dict(scored.rows[0].columns) == {}
    assert scene.counts == {"teacher_big_failed": 1}


@in_event_loop
async def test_only_the_row_that_is_refused_loses_its_reward() -> None:
    long = [1, 2, 3]
    server = ScriptedTeacher(refused=long)
    server.gate.clear()
    scene = Scene(server, in_flight=1)
    scoring = asyncio.create_task(scene.score(*(trajectory(row(ids, (1, 2))) for ids in ([4, 5, 6], long, [7, 8, 9]))))
    await server.asked.wait()
    server.gate.set()
    scored = await scoring
    assert [one.reward for one in scored] == [1.0, None, 1.0]
    assert scene.counts == {"teacher_big_scored": 2, "teacher_big_refused": 1}


@in_event_loop
async def test_a_trajectory_keeps_the_error_of_its_reward_beside_that_of_its_teacher() -> None:
    scene = Scene(ScriptedTeacher([GONE]), max_attempts=1)
    (scored,) = await scene.score(Trajectory(rows=(row(),), reward=None, reward_error="timeout"))
    assert scored.reward_error is not None
    assert scored.reward_error.startswith("timeout; teacher big: failed")


@in_event_loop
async def test_a_teacher_that_always_fails_ends_the_worker_instead_of_masking_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B118: a flat run that learns nothing must not end with exit code 0."""
    monkeypatch.setattr(module, "GIVE_UP_AFTER", 3)
    scene = Scene(ScriptedTeacher([GONE] * 3), max_attempts=1)
    for _ in range(3):
        assert (await scene.score(trajectory()))[0].reward is None
    with pytest.raises(ServerError, match="failed 3 requests in a row"):
        await scene.score(trajectory())


@in_event_loop
async def test_several_teachers_score_one_answer_each_for_its_data_sources() -> None:
    maths, code, any_ = (
        Scene(ScriptedTeacher(), "maths", data_sources=("sums",)),
        Scene(ScriptedTeacher(), "code", data_sources=("programs",)),
        Scene(ScriptedTeacher(), "any"),
    )
    teachers = Teachers([maths.teacher, code.teacher, any_.teacher])
    scored = await teachers.score("sums", trajectory())
    assert list(scored.rows[0].columns) == ["teacher/maths/logprobs", "teacher/any/logprobs"]
    assert code.server.requests == []


@in_event_loop
async def test_a_cancelled_episode_leaves_the_others_their_scores() -> None:
    server = ScriptedTeacher()
    server.gate.clear()
    scene = Scene(server)
    gone, stays = asyncio.create_task(scene.score(trajectory())), asyncio.create_task(scene.score(trajectory()))
    await server.asked.wait()
    gone.cancel()
    server.gate.set()
    assert (await stays)[0].reward == 1.0
    with pytest.raises(asyncio.CancelledError):
        await gone


@in_event_loop
async def test_workers_wait_for_a_teacher_up_to_a_deadline_and_say_which() -> None:
    server = ScriptedTeacher()
    scene = Scene(server)
    await scene.teacher.ready(5.0)

    async def absent() -> None:
        raise GONE

    server.model_info = absent  # type: ignore[assignment,method-assign]  # the server is gone
    with pytest.raises(WaitTimeout, match="teacher 'big' does not answer at http://teacher"):
        await scene.teacher.ready(0.05)


@in_event_loop
async def test_closing_cancels_whoever_waits_for_scores() -> None:
    server = ScriptedTeacher()
    server.gate.clear()
    scene = Scene(server)
    waiting = asyncio.create_task(scene.score(trajectory()))
    await server.asked.wait()
    await scene.teacher.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
