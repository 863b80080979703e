"""Inside a vLLM server, in every engine rank: the weight loader as methods of vLLM's worker.

Named to the server as `--worker-extension-cls weightsync.vllm_worker.LoadsStaged`. Its methods are called by name
through /collective_rpc, between two steps of the engine while that is paused. The loader is the one that SGLang runs,
and finds its ticket in the same stage directory.
"""

import sys
from importlib import import_module
from typing import Any

from torch import nn
from torch.nn import functional

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


def plain_linear(layer: nn.Module, remove_weight: bool) -> None:
    """In the place of vLLM's choice of a kernel for a linear layer on a CPU: the layer computes with its weight as it
    lies there. vLLM's own kernels compute with a packed copy that they make when the model is loaded, and what is
    written to the weight later would not be seen; most drop the weight (`remove_weight`)."""
    layer.cpu_linear = functional.linear  # type: ignore[assignment]  # vLLM calls it with input, weight, bias


def keep_weights_where_they_are() -> None:
    """Of a server without a device, before its model is loaded; on devices vLLM computes with the weights as they lie.

    vLLM imports this module when it makes a worker, and names its kernels when the model is loaded.
    """
    if import_module("vllm.platforms").current_platform.is_cpu():
        vars(import_module("vllm.model_executor.layers.utils"))["dispatch_cpu_unquantized_gemm"] = plain_linear


if "vllm" in sys.modules:
    keep_weights_where_they_are()
