"""Decodes SGLang's `serialized_named_tensors`: a pickle from the network, of which only plain tensors are accepted."""

from __future__ import annotations

import base64
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


class PayloadRefused(ValueError):
    """The payload asks for something outside the list, or is not a list of (name, tensor). SGLang dies of it."""


def _storage(content: bytes) -> object:
    """A tensor's bytes as torch stores them inside a pickle, read by torch's own restricted reader."""
    return torch.load(io.BytesIO(content), weights_only=True)


ALLOWED: Mapping[tuple[str, str], Callable[..., object]] = {
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("collections", "OrderedDict"): OrderedDict,
}
"""All that a pickled list of (name, CPU tensor) needs. SGLang's list is longer; nothing of ours uses more."""


class _TensorUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., object]:
        found = ALLOWED.get((module, name))
        if found is None:
            raise PayloadRefused(
                f"the payload names {module}.{name}, which is not needed for a list of plain CPU tensors: it is not "
                "loaded. Send pickle.dumps([(name, tensor), ...]) of contiguous CPU tensors."
            )
        return found

    def persistent_load(self, pid: object) -> object:
        raise PayloadRefused(f"the payload refers to an outside object {pid!r}; only inline tensors are read.")


def decode(payload: str) -> list[tuple[str, Tensor]]:
    """Reads one rank's payload.

    Args:
        payload: base64 of a pickled list of (name, CPU tensor).
    Raises:
        PayloadRefused: not base64, not such a pickle, or one that needs any other global.
    """
    try:
        value = _TensorUnpickler(io.BytesIO(base64.b64decode(payload, validate=True))).load()
    except PayloadRefused:
        raise
    except Exception as error:  # a malformed pickle can raise nearly anything; all of it means the same here
        raise PayloadRefused(f"the payload is not a pickled list of (name, tensor): {error!r}") from error
    if not isinstance(value, list):
        raise PayloadRefused(f"the payload is {type(value).__name__}, expected a list of (name, tensor).")
    pairs: list[tuple[str, Tensor]] = []
    for item in value:
        if not (isinstance(item, tuple | list) and len(item) == 2):
            raise PayloadRefused(f"an entry of the payload is {type(item).__name__}, expected (name, tensor).")
        name, tensor = item
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise PayloadRefused(f"an entry of the payload is ({type(name).__name__}, {type(tensor).__name__}).")
        pairs.append((name, tensor))
    return pairs
