"""How the C library hands out memory to a rank that computes on a CPU.

A training step asks for its activations and frees them, every step the same. By default glibc gives the larger ones
back to the kernel each time, so that every step faults its pages in anew, 4 KiB each: a sixth of a small model's step.
"""

import os
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
_KEPT_BYTES = 1 << 30
"""Freed memory at the end of the heap that a rank keeps for the next step, at most."""
_IN_HEAP_BYTES = 32 << 20
"""Pieces up to this size come from the heap; it is the most that glibc allows."""


def heap_settings(num_devices: int, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a rank: what it freed in a step serves the next one, on huge pages where the kernel has them.

    Other C libraries ignore it. Empty for a rank with a GPU, whose activations are not on the heap, and where the
    variable is set already.

    Args:
        num_devices: GPUs of the rank that this process chose; Ray chooses later, and there they do no harm.
        given: the environment of this process; None: that of the operating system.
    """
    if num_devices or VARIABLE in (os.environ if given is None else given):
        return {}
    tunables = {"hugetlb": 1, "mmap_threshold": _IN_HEAP_BYTES, "trim_threshold": _KEPT_BYTES}
    return {VARIABLE: ":".join(f"glibc.malloc.{name}={value}" for name, value in tunables.items())}
