"""A step's line: what left the buffer is told with its lengths, and the heartbeat is no wait."""

from asyncrl.trainer.reporting import HEARTBEAT, _consumed, _left, _without_heartbeat
from buffer.answers import Entry, LeftGroup


def left(ordinal, lag, *sampled, outcome="waiting", source="toy"):
    return LeftGroup(ordinal, 1, "stale", outcome, lag, tuple(n + 5 for n in sampled), sampled, source)


def entry(ordinal, lag, source="toy"):
    return Entry(ordinal, 1, "key", 100, "hash", lag, (7,), (2,), (1.0,), source, 3.0)


def test_the_histogram_of_lags_counts_groups():
    values = _consumed([entry(0, 0), entry(1, 2), entry(2, 2)])
    assert {name: value for name, value in values.items() if name.startswith("training/")} == {
        "training/off_policy/lag/0": 1.0,
        "training/off_policy/lag/2": 2.0,
    }
    assert (values["buffer/lag_max"], values["buffer/num_groups"]) == (2.0, 3.0)


def test_several_sources_are_told_apart():
    values = _consumed([entry(0, 0), entry(1, 0, "other"), entry(2, 0)])
    assert (values["buffer/num_groups/toy"], values["buffer/num_groups/other"]) == (2.0, 1.0)
    values = _left([left(1, 3, 10), left(2, 3, 30, source="other")])
    assert values["buffer/left/stale/groups/other"] == 1.0
    assert values["buffer/left/stale/response_length/other/mean"] == 30.0


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
