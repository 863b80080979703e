"""The file that is written tensor by tensor is the one that safetensors would have written, and its hash is right."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncrl.trainer import tensor_file
from asyncrl.trainer.checkpoint_files import hash_file
from asyncrl.trainer.tensor_file import DTYPES, write_tensors


def tensors():
    made = {f"a {dtype}": torch.arange(-3, 9).to(dtype) for dtype in DTYPES if dtype is not torch.bool}
    return made | {
        "flags": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.5),
        "nothing": torch.empty(0, 4),
        "turned": torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).t(),
        "slice": torch.arange(20.0)[3:17:2],
        "NaN and -0.0": torch.tensor([float("nan"), -0.0, float("-inf")], dtype=torch.bfloat16),
    }


@pytest.mark.parametrize("chunk", [1, 7, 4 << 20])
def test_the_bytes_are_those_of_safetensors_and_the_hash_is_of_the_file(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(tensor_file, "CHUNK_BYTES", chunk)
    metadata = {"layout": '{"x": "é"}'}
    size, digest = write_tensors(tmp_path / "ours", tensors(), metadata)
    save_file({name: tensor.contiguous() for name, tensor in tensors().items()}, tmp_path / "theirs", metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert (size, digest) == ((tmp_path / "ours").stat().st_size, hash_file(tmp_path / "ours"))
    read = load_file(tmp_path / "ours")
    for name, tensor in tensors().items():
        one, other = (values.reshape(-1).view(torch.uint8) for values in (read[name], tensor.contiguous()))
        assert torch.equal(one, other), name


def test_a_dtype_that_the_format_lacks_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"phase is torch\.complex64"):
        write_tensors(tmp_path / "x", {"phase": torch.zeros(2, dtype=torch.complex64)}, {})


def test_a_full_disk_is_an_error_of_the_system():
    with pytest.raises(OSError, match="No space left"):
        write_tensors(Path("/dev/full"), {"x": torch.zeros(2)}, {})
