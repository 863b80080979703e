"""vLLM's interpreter for tests, where there is one."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "ASYNCRL_VLLM_PYTHON"
"""Environment variable: interpreter of an environment with vLLM; without it, .venv-vllm of `scripts/setup --vllm`."""

HEADS = {"head_dim": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Of a tiny model: vLLM's attention on a CPU knows no smaller head."""


def vllm_python() -> Path:
    """The interpreter; skips the test, saying why, if there is none."""
    path = Path(os.environ.get(VARIABLE) or ROOT / ".venv-vllm" / "bin" / "python")
    if not path.exists():
        pytest.skip(f"the real vLLM is not tested: there is no .venv-vllm (scripts/setup --vllm) and no {VARIABLE}")
    return path
