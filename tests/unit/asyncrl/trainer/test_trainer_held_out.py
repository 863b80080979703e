"""Which server is kept at a version, and when its evaluation is given up."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncrl.trainer.held_out import GONE_S, Whereabouts, to_keep
from buffer.versions import pack
from weightsync.acks import Server
from weightsync.errors import LogLost
from weightsync.log import open_log
from weightsync.log.base import Pin
from weightsync.log.records import VersionRecord

V1, V2 = pack(1, 1), pack(1, 2)


def server(state="serving", *, lent=False):
    return Server("i", "http://s", state, 0.0, 30.0, lent)


def test_one_of_several_is_kept_the_last_by_name():
    assert to_keep({"server-0": server(), "server-1": server(), "adopted-0": server()}) == "server-1"
    assert to_keep({"server-0": server("updating"), "server-1": server()}) == "server-1"


@pytest.mark.parametrize(
    "servers",
    [
        {},
        {"server-0": server()},
        {"server-0": server(), "server-1": server("failed")},
        {"server-0": server(), "server-1": server("starting")},
        {"server-0": server(), "server-1": server(lent=True)},
    ],
)
def test_none_is_kept_where_no_other_would_go_on_for_training(servers):
    assert to_keep(servers) is None


@pytest.fixture
def log(tmp_path: Path):
    log = open_log(str(tmp_path), "run")
    log.flip(None, VersionRecord(0, None, "o", "layout", 1, model_dir="/m"))
    log.claim(1)
    return log


class Clock:
    now_s = 0.0

    def __call__(self):
        Clock.now_s += 1.5  # longer than between two looks
        return Clock.now_s


def whereabouts(log, *, trained=V1):
    lineage = SimpleNamespace(version=trained)
    return Whereabouts(SimpleNamespace(log=log), lineage, Pin("server-1", V1), Clock())


def flip(log, version, base):
    log.flip(base, VersionRecord(version, base, f"n{version}", "layout", version + 1))


def test_a_version_that_is_published_and_a_server_that_lives_are_waited_for(log):
    log.register("server-1", "a", "http://s", 60.0)
    look = whereabouts(log)
    assert look.why_never() == "", "it is on its way"
    flip(log, V1, 0)
    log.put_ack("server-1", "a", V1, V1 + 1, "serving")
    assert look.why_never() == ""


def test_a_version_that_was_never_published_is_given_up_once_training_is_past_it(log):
    log.register("server-1", "a", "http://s", 60.0)
    assert whereabouts(log, trained=V1).why_never() == ""
    assert "1.1 was not published" in whereabouts(log, trained=V2).why_never()


def test_a_server_may_be_away_for_a_while_but_not_for_ever(log):
    flip(log, V1, 0)
    look = whereabouts(log)
    assert look.why_never() == ""
    log.register("server-1", "b", "http://s", 60.0)
    assert look.why_never() == "", "it is back"
    log.leave("server-1", "b")
    answers = [look.why_never() for _ in range(round(GONE_S))]
    assert answers[0] == ""
    assert "server-1 is gone" in answers[-1]


def test_a_server_that_serves_a_later_version_does_not_come_back(log):
    flip(log, V1, 0)
    flip(log, V2, V1)
    log.register("server-1", "a", "http://s", 60.0)
    log.put_ack("server-1", "a", V2, V2 + 1, "serving")
    assert "server-1 is at version 1.2" in whereabouts(log).why_never()
    log.put_state("server-1", "a", "updating")
    assert whereabouts(log).why_never() == "", "its new life may be on the way to the older one"


def test_a_log_that_does_not_answer_for_a_moment_ends_no_evaluation(log, caplog):
    class Lost:
        def __getattr__(self, name):
            raise LogLost("no answer")

    assert whereabouts(Lost()).why_never() == ""
    assert "where server-1 is" in caplog.text
