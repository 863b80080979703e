"""A model directory as raw words: safetensors headers read by hand, tensors mapped, nothing converted.

numpy has no bfloat16 and the host has no torch, so words are unsigned integers of the element's width.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weightsync.errors import ModelDirError
from weightsync.layout import ITEMSIZE, WORD_DTYPE, Words

_DTYPE: Mapping[str, str] = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "BF16": "bfloat16",
    "F16": "float16",
    "I16": "int16",
    "U16": "uint16",
    "F32": "float32",
    "I32": "int32",
    "U32": "uint32",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor's bytes lie."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


class ModelDir:
    """The weights of a Hugging Face model directory.

    Raises:
        ModelDirError: no safetensors file, a file is damaged, or a tensor has a dtype the format does not carry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, StoredTensor] = {}
        for file in self._files():
            self._read_header(file)
        self.ties_embeddings = self._ties_embeddings()

    def words(self, name: str) -> Words:
        """The flat words of a tensor, [num_words] unsigned, mapped read-only from its file."""
        stored = self.tensors[name]
        dtype = WORD_DTYPE[min(ITEMSIZE[stored.dtype], 4)]
        if stored.num_bytes == 0:
            return np.empty(0, dtype)
        shape = (stored.num_bytes // dtype.itemsize,)
        return np.memmap(stored.file, dtype=dtype, mode="r", offset=stored.begin, shape=shape)

    def _files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise ModelDirError(
                    f"{index} is not a safetensors index ({error!r}): no weights can be found through it. Save the "
                    "model again with save_pretrained."
                ) from error
            if any(not isinstance(name, str) or Path(name).name != name for name in names):
                raise ModelDirError(f"{index} names files outside its directory: {names}. It is not read.")
            files = [self.path / name for name in names]
        else:
            files = sorted(self.path.glob("*.safetensors"))
        if not files or not all(file.is_file() for file in files):
            missing = [str(file) for file in files if not file.is_file()] or f"{self.path}/*.safetensors"
            raise ModelDirError(
                f"no weights: {missing} not found. Version 0.0 is a directory with safetensors files; save the model "
                "with save_pretrained(safe_serialization=True)."
            )
        return files

    def _read_header(self, file: Path) -> None:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else -1
            if not 0 < length <= min(size - 8, _MAX_HEADER_BYTES):
                raise ModelDirError(f"{file}: header of {length} bytes in a file of {size}: not a safetensors file.")
            raw = stream.read(length)
        try:
            header = json.loads(raw)
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            for name, entry in entries.items():
                begin, end = entry["data_offsets"]
                shape = tuple(int(n) for n in entry["shape"])
                self._add(name, entry["dtype"], shape, file, 8 + length + begin, end - begin, size)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if isinstance(error, ModelDirError):
                raise
            raise ModelDirError(f"{file}: damaged safetensors header ({error!r}). Save the model again.") from error

    def _add(
        self, name: str, code: str, shape: tuple[int, ...], file: Path, begin: int, num_bytes: int, size: int
    ) -> None:
        dtype = _DTYPE.get(code)
        if dtype is None:
            raise ModelDirError(f"{file}: tensor {name} has dtype {code}; the format carries {sorted(_DTYPE)}.")
        expected = math.prod(shape) * ITEMSIZE[dtype]
        if num_bytes != expected or begin + num_bytes > size or min((0, *shape)) < 0:
            raise ModelDirError(
                f"{file}: tensor {name} of shape {list(shape)} has {num_bytes} bytes at {begin} in a file of {size}, "
                f"expected {expected}. The file is damaged or cut short; save the model again."
            )
        if name in self.tensors:
            raise ModelDirError(f"{file}: tensor {name} is also in {self.tensors[name].file}; which one counts?")
        self.tensors[name] = StoredTensor(file, dtype, shape, begin, num_bytes)

    def _ties_embeddings(self) -> bool:
        path = self.path / "config.json"
        if not path.is_file():
            return False
        try:
            config = json.loads(path.read_text())
        except ValueError as error:
            raise ModelDirError(f"{path} is not JSON ({error}): whether the head is tied cannot be read.") from error
        if not isinstance(config, dict):
            raise ModelDirError(f"{path} holds {type(config).__name__}, expected an object.")
        text = config.get("text_config")
        inner = text if isinstance(text, dict) else {}
        return bool(config.get("tie_word_embeddings", inner.get("tie_word_embeddings", False)))
