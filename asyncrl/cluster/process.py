"""What a child process knows of its parent: it dies with it, and leaves it a reason when it fails."""

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PARENT = "ASYNCRL_PARENT_PID"
LOG = "ASYNCRL_LOG"


def reason_file(log: Path) -> Path:
    """Where a failing child writes its reason, beside its log."""
    return log.with_suffix(".error.json")


def die_with_parent() -> None:
    """Make the kernel end this process when its parent ends, however that ends. Call first thing in a child."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before the call above
        sys.exit(f"asyncrl: parent process {parent} has ended")


def leave_reason(message: str, exit_code: int) -> None:
    """Write why this child fails, for its parent to show; nothing when it was not started by one."""
    log = os.environ.get(LOG)
    if log is not None:
        reason_file(Path(log)).write_text(json.dumps({"message": message, "exit_code": exit_code}))
