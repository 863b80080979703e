"""What a child process knows of its parent: it ends with it, and leaves it a reason when it fails."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PARENT = "ASYNCRL_PARENT_PID"
STARTER = "ASYNCRL_STARTED_BY"
"""The process id of whoever starts a whole command and wants it to stop with it."""
LOG = "ASYNCRL_LOG"


def reason_file(log: Path) -> Path:
    """Where a failing child writes its reason, beside its log."""
    return log.with_suffix(".error.json")


def die_with_parent() -> None:
    """Make the kernel end this process when its parent ends, however that ends. Call first thing in a child."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    _at_parents_end(signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before the call above
        sys.exit(f"asyncrl: parent process {parent} has ended")


def stop_with_starter() -> None:
    """Make the kernel ask this command to stop, by SIGTERM, when the process that started it ends, if that wishes so.

    Asked and not killed: it saves what it has done, and ends what it has started, its Redis too. The kernel ties the
    wish to the thread that started it.
    """
    starter = os.environ.pop(STARTER, None)  # not for what this command starts
    if starter is None:
        return
    _at_parents_end(signal.SIGTERM)
    if os.getppid() != int(starter):  # it ended before the call above
        os.kill(os.getpid(), signal.SIGTERM)


def _at_parents_end(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def leave_reason(message: str, exit_code: int) -> None:
    """Write why this child fails, for its parent to show; nothing when it was not started by one."""
    log = os.environ.get(LOG)
    if log is not None:
        reason_file(Path(log)).write_text(json.dumps({"message": message, "exit_code": exit_code}))
