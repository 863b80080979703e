"""What is heard of a process that lives, one that is stopped, one that has closed its end, and while nobody looks."""

import os
import runpy
import select
import signal
import subprocess
import sys

from asyncrl.cluster import pulse
from asyncrl.cluster.pulse import MOST_S, PULSE, Pulse


class Heard:
    """A pulse with a clock that is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pulse = Pulse(lambda: self.now)

    def after(self, seconds: float) -> float:
        self.now += seconds
        return self.pulse.silent_s()


def test_silence_is_counted_look_by_look_and_ends_with_a_sign() -> None:
    heard = Heard()
    assert [heard.after(0.5), heard.after(1.0), heard.after(MOST_S)] == [0.5, 1.5, 1.5 + MOST_S]
    os.write(heard.pulse.theirs, b"..")
    assert [heard.after(1.0), heard.after(1.0)] == [0.0, 1.0]


def test_the_time_in_which_nobody_looked_is_no_silence() -> None:
    """A job that was suspended, supervisor and all, finds its processes as it left them."""
    heard = Heard()
    assert heard.after(0.5) == 0.5
    assert heard.after(3600.0) == 0.5 + MOST_S


def test_a_process_that_has_closed_its_end_is_not_judged() -> None:
    heard = Heard()
    heard.pulse.handed_over()
    assert [heard.after(1.0), heard.after(1.0)] == [0.0, 0.0]
    heard.pulse.close()
    heard.pulse.close()
    assert heard.after(1.0) == 0.0


def test_a_process_gives_signs_while_its_main_thread_waits_and_none_once_it_is_stopped() -> None:
    heard = Heard()
    end = heard.pulse._heard
    code = f"import runpy, signal; runpy.run_path({pulse.__file__!r})['give_pulse'](); signal.pause()"
    environment = {**os.environ, PULSE: str(heard.pulse.theirs)}
    theirs = (heard.pulse.theirs,)
    with subprocess.Popen([sys.executable, "-S", "-c", code], env=environment, pass_fds=theirs) as process:
        heard.pulse.handed_over()
        try:
            for _ in range(2):
                assert select.select([end], [], [], 60)[0]
                assert heard.after(1.0) == 0.0
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            heard.pulse.silent_s()  # what it gave before
            assert not select.select([end], [], [], 2.5 * pulse.BEAT_S)[0]
            assert heard.after(1.0) == 1.0
        finally:
            process.kill()


def test_nobody_is_told_of_a_process_that_was_started_by_hand(monkeypatch) -> None:
    monkeypatch.delenv(PULSE, raising=False)
    runpy.run_path(pulse.__file__)["give_pulse"]()
