"""Memory of a rank on a CPU: what it frees in one step is there for the next."""

import os
import platform
import subprocess
import sys

import pytest

from asyncrl.run.allocator import VARIABLE, heap_settings

STEP = """
import resource

def step():
    return [bytearray(8 << 20) for _ in range(4)]

for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 4 * (8 << 20) // 4096


def faults(env: dict[str, str]) -> int:
    """Pages that ten steps fault in."""
    alone = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", STEP], env={**alone, **env}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_a_step_faults_no_pages_in_that_the_one_before_had() -> None:
    assert faults(heap_settings(0, {})) < PAGES / 4


def test_a_rank_with_a_gpu_and_an_environment_that_says_otherwise_are_left_alone() -> None:
    assert heap_settings(1, {}) == {}
    assert heap_settings(0, {VARIABLE: "glibc.malloc.arena_max=1"}) == {}
