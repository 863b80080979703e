"""Which failure is shown, and decides, when several ranks fail together."""

import signal

from asyncrl.cluster import Failure
from asyncrl.errors import FencedOut, NumericsError
from asyncrl.run.train import cause

PEER = Failure("rank-0", 1, "RuntimeError: Connection closed by peer")
KILLED = Failure("rank-2", -signal.SIGKILL, "rank-2 ended by SIGKILL without a reason")


def test_a_rank_that_was_killed_explains_those_that_lost_it() -> None:
    """B186: not the first rank's lost connection, but who died, by which signal."""
    assert cause([PEER, KILLED], [PEER, KILLED]) is KILLED


def test_a_reason_that_forbids_a_restart_wins_also_when_it_comes_last() -> None:
    fenced = Failure("rank-3", FencedOut.exit_code, "a newer trainer owns the run")
    assert cause([KILLED, PEER], [KILLED, PEER, fenced]) is fenced
    numerics = Failure("rank-1", NumericsError.exit_code, "5 % of the tokens are not finite")
    assert cause([PEER, numerics], [PEER, numerics]) is numerics


def test_the_signal_that_the_stop_ends_with_explains_nothing() -> None:
    assert cause([PEER], [PEER, KILLED]) is PEER
