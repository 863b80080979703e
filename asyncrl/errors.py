"""The exceptions asyncrl raises to its users, and the exit code each one ends a command with.

AsyncrlError
 +-- ConfigError       a key, a value or a combination of them          exit 2
 +-- DataError         a data file or a row of it                       exit 2
 +-- PreflightError    the machine, Redis, a port or a device           exit 3
 +-- WaitTimeout       a named wait passed its deadline                 exit 75, so that a scheduler starts it again
 +-- ClusterLost       the head of the cluster is gone                  exit 75
 +-- ServerError       an inference server refused or failed            exit 4
 +-- RewardError       a reward function that cannot be loaded          exit 2
 +-- CheckpointError   a checkpoint that cannot be written or read      exit 5
 +-- ExportError       weights that cannot be exported                  exit 5
 +-- NumericsError     too many non-finite values to go on              exit 6
 +-- FencedOut         a newer trainer owns the run: do not restart     exit 7
 +-- ProcessDied       a child process ended and its restarts are used  exit 8

`buffer` and `weightsync` know nothing of asyncrl and have trees of their own (buffer/errors.py, weightsync/errors.py).
"""


class AsyncrlError(Exception):
    """Base of every error that is meant for the user: one message that says what, why it matters and what to do."""

    exit_code = 1


class ConfigError(AsyncrlError, ValueError):
    """A configuration key, value or combination is wrong; the message names the key and what is allowed."""

    exit_code = 2


class DataError(AsyncrlError, ValueError):
    """A data file is missing, unreadable or holds unusable rows; the message names file, line and reason."""

    exit_code = 2


class RewardError(AsyncrlError, ValueError):
    """A reward function cannot be found, loaded or called with the documented signature."""

    exit_code = 2


class PreflightError(AsyncrlError):
    """Something the run needs (Redis, a port, a device, disk) is missing or misconfigured; nothing was started."""

    exit_code = 3


class ServerError(AsyncrlError):
    """An inference server refused a request for good, or none is left to ask."""

    exit_code = 4


class CheckpointError(AsyncrlError):
    """A checkpoint cannot be written (the older ones are intact) or read (the message names the file)."""

    exit_code = 5


class ExportError(AsyncrlError):
    """Weights cannot be exported in Hugging Face form."""

    exit_code = 5


class NumericsError(AsyncrlError, ArithmeticError):
    """More losses or logprobs than allowed are NaN or infinite; training on would spoil the weights."""

    exit_code = 6


class FencedOut(AsyncrlError):
    """A newer branch owns the run. This trainer must exit and stay down: two would fence each other for ever."""

    exit_code = 7


class ProcessDied(AsyncrlError):
    """A child process ended unexpectedly and its bounded restarts are used up."""

    exit_code = 8


class ClusterLost(AsyncrlError):
    """What joins the machines of a cluster is gone, and with it what was started there. Exit code 75: on a cluster
    that is there again the command goes on with `--resume`."""

    exit_code = 75


class WaitTimeout(AsyncrlError, TimeoutError):
    """A named wait passed its deadline.

    Exit code 75 (EX_TEMPFAIL) tells Slurm, Kubernetes or systemd to start the command again with `--resume`.
    """

    exit_code = 75

    def __init__(self, name: str, waited_s: float, deadline_s: float, why: str) -> None:
        super().__init__(name, waited_s, deadline_s, why)
        self.name, self.waited_s, self.deadline_s, self.why = name, waited_s, deadline_s, why

    def __str__(self) -> str:
        return f"{self.name}: {self.waited_s:.1f} s >= deadline {self.deadline_s:.1f} s. {self.why}"


def is_for_the_user(error: Exception) -> bool:
    """Whether the error is one of the bridges' own, worded for people; others are bugs and keep their trace."""
    return any(base.__module__ in ("buffer.errors", "weightsync.errors") for base in type(error).__mro__)
