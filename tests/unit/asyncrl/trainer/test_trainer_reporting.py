"""The heartbeat is no wait, and what is generated is what the workers say."""

from asyncrl.trainer.reporting import HEARTBEAT, SILENT_MS, _without_heartbeat, generated


def test_the_heartbeat_is_not_among_the_waits():
    seconds = {f"timing_s/wait/{HEARTBEAT}": 9.0, "timing_s/wait/stale_groups": 1.0}
    assert _without_heartbeat(seconds) == {"timing_s/wait/stale_groups": 1.0}


def test_what_is_generated_is_the_sum_over_workers_that_still_report():
    reports = {
        "worker-0.1": {"tokens_per_s": 100.0, "at_ms": 50_000.0},
        "worker-1.2": {"tokens_per_s": 40.0, "at_ms": 50_000.0 - SILENT_MS},
        "worker-1.1": {"tokens_per_s": 7.0, "at_ms": 49_999.0 - SILENT_MS},
        "trainer": {"tokens_per_s": 900.0, "at_ms": 50_000.0},
        "buffer": {"ready": 3.0, "at_ms": 50_000.0},
        "server-0": {"state": "serving", "at_ms": 50_000.0},
    }
    assert generated(reports) == 140.0
    assert generated({}) == 0.0
