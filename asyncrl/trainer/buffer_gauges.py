"""Metrics of the whole buffer, taken where a checkpoint reads its books anyway."""

from buffer.status import Usage


def gauges(usage: Usage) -> dict[str, float]:
    """Metrics of the whole buffer, as a checkpoint finds it.

    They depend on who was when, as seconds do: hence perf/.
    """
    denied = "denied_"
    return {
        "perf/buffer/resident_bytes": float(usage.resident_bytes),
        "perf/buffer/promised_bytes": float(usage.promised_bytes),
        "perf/buffer/dead_bytes": float(usage.dead_bytes),
        **{
            f"perf/buffer/denied/{reason.removeprefix(denied)}": float(times)
            for reason, times in usage.reasons.items()
            if reason.startswith(denied)
        },
        **{f"perf/buffer/wasted_frac/{fate}": share for fate, share in usage.wasted_by_reason.items()},
    }
