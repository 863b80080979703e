"""A server ends with the process that started it."""

import subprocess
import sys
import threading

import pytest

from asyncrl.inference.local_engine.parent import watch_parent


@pytest.mark.parametrize("pidfd", [True, False])
def test_the_end_of_a_process_is_seen_once(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr("os.pidfd_open")
        monkeypatch.setattr("asyncrl.inference.local_engine.parent.RECHECK_S", 0.01)
    ended = threading.Event()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        thread = watch_parent(process.pid, ended.set)
        assert not ended.wait(0.05)
        process.kill()
        process.wait()
        assert ended.wait(10)
        thread.join(10)


def test_a_process_that_is_gone_already_counts_as_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    ended = threading.Event()
    watch_parent(process.pid, ended.set)
    assert ended.wait(10)
