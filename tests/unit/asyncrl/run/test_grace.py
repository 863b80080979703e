"""A stop within its grace time: nothing to do if the loop ends, else groups given back, a word left, and the end."""

import threading
from functools import partial

import pytest

from asyncrl.run.grace import Grace, give_back
from asyncrl.run.outcome import Ended, read_outcome
from asyncrl.trainer.at_hand import WorkAtHand
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer

SOON_S = 30.0


class Ends:
    """Stands for the end of the process."""

    def __init__(self):
        self.codes, self.happened = [], threading.Event()

    def __call__(self, code):
        self.codes.append(code)
        self.happened.set()


def test_a_loop_that_ends_in_time_is_left_alone():
    stop, ends = threading.Event(), Ends()
    with Grace(stop, 60.0, lambda why: None, WorkAtHand(), end_process=ends):
        stop.set()
    assert ends.codes == []


def test_without_a_stop_nothing_ends():
    ends = Ends()
    with Grace(threading.Event(), 0.01, lambda why: None, WorkAtHand(), end_process=ends):
        assert not ends.happened.wait(0.6)


def test_a_rank_that_holds_nothing_leaves_when_the_time_is_up_and_not_before():
    stop, ends, now = threading.Event(), Ends(), [0.0]
    stop.set()
    with Grace(stop, 40.0, None, WorkAtHand(), end_process=ends, clock=lambda: now[0]):
        assert not ends.happened.wait(0.6)
        now[0] = 40.0
        assert ends.happened.wait(SOON_S)
    assert ends.codes == [0]


@pytest.mark.parametrize("trouble", ["hangs", "fails"])
def test_a_buffer_that_is_gone_does_not_keep_the_rank(trouble, caplog):
    stop, ends, forever = threading.Event(), Ends(), threading.Event()
    stop.set()

    def giving(why):
        if trouble == "fails":
            raise ConnectionError("Redis is gone")
        forever.wait(SOON_S)

    with Grace(stop, 0.4, giving, WorkAtHand(), end_process=ends):
        assert ends.happened.wait(SOON_S)
    forever.set()
    assert "the next trainer takes them back" in caplog.text


def test_a_step_that_takes_too_long_is_left_and_every_group_is_given_back(tmp_path):
    """The trainer that resumes trains all of it, and no group counts as one that killed a trainer."""
    model_dir = write_tiny_model(tmp_path / "model")
    config = make_config(tmp_path, model_dir, trainer={"steps": 4, "checkpoint": {"every_steps": 2}})
    buffer, stop, ends = make_buffer(config), threading.Event(), Ends()
    run = start_trainer(config, buffer)
    step, done = run.parts.learner.step, []

    class Left(BaseException):
        """The process ended here."""

    def endless(batch):
        done.append(1)
        if len(done) == 4:
            stop.set()
            assert ends.happened.wait(SOON_S)
            raise Left
        return step(batch)

    run.parts.learner.step = endless
    loop = run.loop()
    grace = Grace(stop, 1.0, partial(give_back, tmp_path, buffer, loop.at_hand), loop.at_hand, end_process=ends)
    with grace, rollout_for(run).running(), pytest.raises(Left):
        run.go(loop=loop, stop=stop)
    counts = buffer.counts()
    assert (counts["leased"], counts["consumed"]) == (0, 8)
    assert counts["ready"] >= 8  # of step 3, trained and in no checkpoint, and of step 4
    left = read_outcome(tmp_path)
    assert (left.reason, left.ended_by, left.why) == ("left", "stop", "the time for a stop is up")

    resumed = start_trainer(config, buffer)
    with rollout_for(resumed).running():
        assert resumed.go(resume=True).reason == "finished"
    assert [step for step, _, values in resumed.sink.lines if "actor/pg_loss" in values] == [3, 4]
    assert buffer.audit().ok
    assert buffer.counts()["consumed"] == 16
    assert not any(card.poison for card in buffer._store.books().cards.values())


def test_without_a_word_the_end_is_unknown(tmp_path):
    assert read_outcome(tmp_path) == Ended()
