"""The heartbeat is no wait."""

from asyncrl.trainer.reporting import HEARTBEAT, _without_heartbeat


def test_the_heartbeat_is_not_among_the_waits():
    seconds = {f"timing_s/wait/{HEARTBEAT}": 9.0, "timing_s/wait/stale_groups": 1.0}
    assert _without_heartbeat(seconds) == {"timing_s/wait/stale_groups": 1.0}
