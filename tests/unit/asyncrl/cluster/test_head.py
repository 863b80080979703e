"""A head counts as lost after its time, and one that is started again meanwhile does not."""

import itertools
import os
import socket
import threading

from asyncrl.cluster.head import HeadWatch


def until_lost(watch: HeadWatch) -> str:
    while not watch.why_lost:
        os.sched_yield()
    return watch.why_lost


def test_a_head_that_comes_back_in_time_is_not_lost() -> None:
    seen, answers = itertools.count(), iter(["gone", None, "gone", "gone", "gone", "never asked"])
    watch = HeadWatch("head:1", 3.0, look_s=0.0, reach=lambda _: next(answers), clock=lambda: float(next(seen)))
    assert until_lost(watch) == "gone, for 3 s"
    assert next(answers) == "never asked"


def test_a_head_that_ends_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        watch = HeadWatch(f"127.0.0.1:{listener.getsockname()[1]}", 0.0, look_s=0.0)
        listener.accept()[0].close()
        assert watch.why_lost == ""
    assert "nobody answers there" in until_lost(watch)


def test_nobody_looks_after_the_close() -> None:
    asked: list[str] = []
    watch = HeadWatch("head:1", 0.0, look_s=60.0, reach=lambda address: asked.append(address))
    watch.close()
    assert (asked, watch.why_lost) == ([], "")


def test_whoever_asks_for_it_is_told_once_that_the_head_is_lost() -> None:
    told = threading.Event()
    watch = HeadWatch("head:1", 0.0, look_s=0.0, reach=lambda _: "gone", lost=told.set)
    assert told.wait(60)
    assert watch.why_lost.startswith("gone")
