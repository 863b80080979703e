"""`import buffer` and its settings load nothing heavy, and nothing that a process without Redis lacks."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["buffer", "buffer.config", "buffer.errors", "buffer.versions", "buffer.staleness"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    heavy = ("redis", "torch", "ray", "transformers", "fsspec", "zstandard")
    probe = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_in_memory_buffer_needs_no_redis() -> None:
    probe = (
        "import sys; sys.modules['redis'] = None; import buffer; "
        "buffer.ReplayBuffer.in_memory('r', buffer.BufferConfig()).sweep(); print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fine"


def test_every_exported_name_is_there() -> None:
    probe = "import buffer; [getattr(buffer, name) for name in buffer.__all__]; print(len(buffer.__all__))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30
