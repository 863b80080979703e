"""Inside a vLLM server, in every engine rank: the weight loader as methods of vLLM's worker.

Named to the server as `--worker-extension-cls weightsync.vllm_worker.LoadsStaged`. Its methods are called by name
through /collective_rpc, between two steps of the engine while that is paused. The loader is the one that SGLang runs,
and finds its ticket in the same stage directory.
"""

from typing import Any

from weightsync.loader_status import FAILED, STATUS, status
from weightsync.sglang_loader import load


class LoadsStaged:
    """Mixed into vLLM's own worker class, so its names are chosen not to meet others there."""

    model_runner: Any  # vLLM's, whatever class that is; it holds the model

    def load_staged(self) -> list[int]:
        """Apply the ticket in the stage directory; the status, as `weight_status`."""
        load(self.model_runner.get_model(), ())
        return self.weight_status()

    def weight_status(self) -> list[int]:
        """[code, branch, number, upper 32 bits of the digest, lower 32 bits, words changed] of the last ticket."""
        read = getattr(self.model_runner.get_model(), "get_weights_by_name", None)
        return status(FAILED, None, None, 0) if read is None else list(read(STATUS))
