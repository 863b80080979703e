"""Small models as words: manifests, model directories and changes, for tests of weight sync."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from weightsync.layout import WORD_DTYPE, Words
from weightsync.manifest import Manifest
from weightsync.model_dir import _DTYPE

_CODE = {name: code for code, name in _DTYPE.items()}

Model = dict[str, Words]
"""Flat words by tensor name."""

SHAPES: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "model.embed_tokens.weight": ("bfloat16", (40, 8)),
    "model.layers.0.norm.weight": ("bfloat16", (8,)),
    "model.layers.0.proj.weight": ("bfloat16", (24, 8)),
    "model.steps": ("int32", (3, 5)),
    "model.codes": ("uint8", (11,)),
    "model.empty": ("bfloat16", (0, 8)),
}
"""Every word width, a norm, an empty tensor."""


def manifest_of(shapes: Mapping[str, tuple[str, tuple[int, ...]]] = SHAPES) -> Manifest:
    return Manifest.of((name, dtype, shape) for name, (dtype, shape) in shapes.items())


def random_words(rng: np.random.Generator, count: int, width: int) -> Words:
    return rng.integers(0, 1 << 8 * width, count, dtype=np.uint64).astype(WORD_DTYPE[width])


def random_model(manifest: Manifest, seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    return {spec.name: random_words(rng, spec.num_words, spec.width) for spec in manifest.tensors}


def changed(words: Words, rng: np.random.Generator, fraction: float, *, small: bool = True) -> Words:
    """A copy in which about `fraction` of the words differ, by a few units in the last place or by anything."""
    new = words.copy()
    chosen = rng.random(words.size) < fraction
    count = int(chosen.sum())
    bits = 8 * words.dtype.itemsize
    steps: npt.NDArray[np.int64] = (
        rng.choice([1, -1, 2, -2, 7, -7, 8, -9], count) if small else rng.integers(1, 1 << bits, count)
    )
    new[chosen] = ((new[chosen].astype(np.int64) + steps) % (1 << bits)).astype(words.dtype)
    return new


def changed_model(model: Model, seed: int, fraction: float = 0.1) -> Model:
    rng = np.random.default_rng(seed)
    return {name: changed(words, rng, fraction) for name, words in model.items()}


def save_model(directory: Path, manifest: Manifest, model: Model, config: Mapping[str, object] | None = None) -> Path:
    """Write a model directory: safetensors by hand, since the words are only bits here."""
    directory.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at, body = 0, []
    for spec in manifest.tensors:
        raw = model[spec.name].tobytes()
        header[spec.name] = {
            "dtype": _CODE[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [at, at + len(raw)],
        }
        at += len(raw)
        body.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body))
    (directory / "config.json").write_text(json.dumps(config or {}))
    return directory


def assert_same(found: Model, expected: Model) -> None:
    """Bit equality, tensor by tensor."""
    assert found.keys() == expected.keys()
    for name, words in expected.items():
        assert np.array_equal(found[name], words), f"{name} differs at {np.flatnonzero(found[name] != words)[:5]}"
