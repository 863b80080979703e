"""A safetensors file written tensor by tensor and hashed on the way: no second copy of the state, no second reading.

The bytes are those of `safetensors.torch.save_file`, which makes its own of them all and leaves the hash to a reading
of the file.
"""

import json
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

CHUNK_BYTES = 4 << 20
"""Written and hashed at once. Both let go of Python's lock meanwhile, so that a step beside them is not slowed down."""

DTYPES: Mapping[torch.dtype, str] = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of the format, in the order in which its files hold them: widest first, so that each is aligned."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[int, str]:
    """Write a new file and flush it to the disk; returns its size in bytes and its blake3.

    Args:
        tensors: any device; one that is not on the CPU, or has gaps, is copied while it is written.
        metadata: texts of the header.
    Raises:
        OSError: the disk is full or fails.
        ValueError: a tensor has a dtype that the format does not have.
    """
    names = sorted(tensors, key=lambda name: (_place(name, tensors[name]), name))
    hasher, size = blake3(), 0
    with path.open("wb", buffering=0) as file:
        for block in chain([_header(names, tensors, metadata)], (_bytes_of(tensors[name]) for name in names)):
            for at in range(0, len(block), CHUNK_BYTES):
                chunk = block[at : at + CHUNK_BYTES]
                hasher.update(chunk)
                _write_all(file.fileno(), chunk)
            size += len(block)
        os.fsync(file.fileno())
    return size, hasher.hexdigest()


def _place(name: str, tensor: Tensor) -> int:
    if tensor.dtype not in DTYPES:
        raise ValueError(f"{name} is {tensor.dtype}, which safetensors cannot hold; known are {[*DTYPES.values()]}.")
    return [*DTYPES].index(tensor.dtype)


def _header(names: list[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> memoryview:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name in names:
        tensor = tensors[name]
        end = at + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # what follows is aligned for readers that map the file
    return memoryview(len(text).to_bytes(8, "little") + text)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _write_all(file: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(file, chunk) :]
