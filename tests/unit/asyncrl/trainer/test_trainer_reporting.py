"""A step's line: what left the buffer is told with its lengths, and the heartbeat is no wait."""

from asyncrl.trainer.reporting import HEARTBEAT, _left, _without_heartbeat
from buffer.answers import LeftGroup


def left(ordinal, lag, *sampled, outcome="waiting"):
    return LeftGroup(ordinal, 1, "stale", outcome, lag, tuple(n + 5 for n in sampled), sampled, "toy")


def test_groups_that_left_as_stale_are_counted_with_lag_and_length():
    values = _left([left(1, 3, 10, 20), left(2, 5, 60, outcome="discarded")])
    assert values == {
        "buffer/num_left": 2.0,
        "buffer/left/stale/groups": 2.0,
        "buffer/left/stale/discarded": 1.0,
        "buffer/left/stale/lag_max": 5.0,
        "buffer/left/stale/response_length/mean": 30.0,
    }


def test_a_step_without_losses_says_so():
    assert _left([]) == {"buffer/num_left": 0.0}


def test_the_heartbeat_is_not_among_the_waits():
    seconds = {f"timing_s/wait/{HEARTBEAT}": 9.0, "timing_s/wait/stale_groups": 1.0}
    assert _without_heartbeat(seconds) == {"timing_s/wait/stale_groups": 1.0}
