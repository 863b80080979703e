"""Version 0.0 of an adapter that travels alone: zeros, as a model directory of its own beside the model's.

Both sides make it for themselves, the trainer from the adapter's shapes, a host from the layout in the log. It also
holds the digest of the model that the adapter is of, so that a log's origin is that of one model, and of no other.
Tensors on the wire are A and, scaled, B of each layer: what a server adds to a weight is B A alone.
"""

import json
import math
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from weightsync.adapter_layout import BASE, CONFIG, DOWN, OF, UP
from weightsync.digest import digest_of_model_dir
from weightsync.errors import LayoutMismatch
from weightsync.layout import ITEMSIZE
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir

_STORED: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16"}
"""Dtypes that A and B may travel in, and their names in a file."""


def write_origin(
    directory: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, base: Path, base_digest: int
) -> Path:
    """Write the zeros of an adapter; a directory that is there already makes room. Returns `directory`.

    Args:
        shapes: of A and B, by name.
        dtype: of all of them.
        base: directory of the model that it is an adapter of, on this machine.
        base_digest: of that model's words.
    """
    temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        _write_zeros(temporary / "model.safetensors", shapes, dtype, base_digest)
        (temporary / CONFIG).write_text(json.dumps({OF: str(base.resolve())}) + "\n", encoding="utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def origin_of(manifest: Manifest, base: Path, directory: Path) -> Path:
    """The origin of the adapter with this layout, for the model in `base`; returns `directory`.

    Raises:
        LayoutMismatch: the layout is not an adapter's, or a layer of it is not in `base` or has another shape there.
        ModelDirError: `base` cannot be read.
    """
    layers, shapes = ModelDir(base).tensors, {}
    for spec in manifest.tensors:
        if spec.name == BASE:
            continue
        layer = spec.name.removesuffix(DOWN if spec.name.endswith(DOWN) else UP)
        stored = layers.get(f"{layer}.weight")
        dim = 1 if spec.name.endswith(DOWN) else 0
        if layer == spec.name or stored is None or len(stored.shape) != 2 or stored.shape[dim] != spec.shape[dim]:
            found = "no such layer" if stored is None else f"{layer}.weight {list(stored.shape)}"
            raise LayoutMismatch(
                f"the trainer sends an adapter with {spec.name} {list(spec.shape)}, {base} has {found}. Point both at "
                "the same model, and set lora.sync alike on both sides."
            )
        shapes[spec.name] = spec.shape
    dtypes = sorted({spec.dtype for spec in manifest.tensors if spec.name in shapes})
    if len(dtypes) != 1 or dtypes[0] not in _STORED:
        raise LayoutMismatch(f"the trainer sends an adapter of dtypes {dtypes}, expected one of {list(_STORED)}.")
    return write_origin(directory, shapes, dtypes[0], base, digest_of_model_dir(base, Manifest.from_model_dir(base)))


def _write_zeros(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, base_digest: int) -> None:
    """A safetensors file by hand: numpy knows no bfloat16, and a host has no torch."""
    header: dict[str, object] = {BASE: {"dtype": "U64", "shape": [1], "data_offsets": [0, 8]}}
    at = 8
    for name, shape in sorted(shapes.items()):
        end = at + math.prod(shape) * ITEMSIZE[dtype]
        header[name] = {"dtype": _STORED[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + base_digest.to_bytes(8, "little"))
        file.truncate(8 + len(text) + at)  # what is not written is zero
