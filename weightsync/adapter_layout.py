"""An adapter's tensors on the wire, and where the origin of one says which model it is of. No torch, no numpy."""

import json
from pathlib import Path

from weightsync.errors import ModelDirError

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
"""How the names of A, [rank, in], and B, [out, rank], of a layer end."""

BASE = "base.digest"
"""Tensor with the digest of the model's directory, [1] uint64."""

CONFIG = "config.json"
OF = "adapter_of"
"""Key of an origin's configuration: directory of the model, on this machine."""


def base_of(directory: Path) -> Path:
    """The model's directory, of an origin that `write_origin` made.

    Raises:
        ModelDirError: the directory is no such origin.
    """
    try:
        return Path(json.loads((directory / CONFIG).read_text(encoding="utf-8"))[OF])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelDirError(f"{directory} does not say which model it is an adapter of ({error!r}).") from error
