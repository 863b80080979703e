"""Only plain tensors come out of a payload, and nothing else is executed."""

import base64
import os
import pickle
from pathlib import Path

import pytest
import torch

from asyncrl.inference.local_engine.update_payload import PayloadRefused, decode
from weightsync.receiver import UPDATE_BODY


def encoded(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def test_the_constant_body_of_an_update_decodes_to_one_empty_tensor() -> None:
    ((name, tensor),) = decode(UPDATE_BODY)
    assert (name, tensor.dtype, tensor.numel()) == ("@weightsync", torch.uint8, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.uint8])
def test_named_tensors_come_back_bit_for_bit(dtype: torch.dtype) -> None:
    sent = torch.arange(12).reshape(3, 4).to(dtype)
    ((name, tensor), (_, part)) = decode(encoded([("a.weight", sent), ("b", sent[1:, ::2])]))
    assert name == "a.weight"
    assert torch.equal(tensor, sent)
    assert torch.equal(part, sent[1:, ::2])


class _Evil:
    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> object:
        return self.call


@pytest.mark.parametrize("wrap", [lambda evil: evil, lambda evil: [("name", evil)], lambda evil: [(evil, 1)]])
def test_a_global_outside_the_list_is_refused_and_not_called(tmp_path: Path, wrap: object) -> None:
    target = tmp_path / "made"
    for function, arguments in ((os.mkdir, (str(target),)), (eval, ("1",)), (os.system, ("true",))):
        with pytest.raises(PayloadRefused, match="is not loaded"):
            decode(encoded(wrap(_Evil(function, *arguments))))  # type: ignore[operator]
    assert not target.exists()


def test_a_global_hidden_inside_a_tensors_storage_is_refused_too(tmp_path: Path) -> None:
    target = tmp_path / "made"
    inner = pickle.dumps(_Evil(os.mkdir, str(target)), protocol=2)
    with pytest.raises(PayloadRefused):
        decode(encoded([("name", _Evil(torch.storage._load_from_bytes, inner))]))
    assert not target.exists()


@pytest.mark.parametrize(
    "payload",
    ["", "!!!", "aGVsbG8=", encoded({"a": 1}), encoded([1]), encoded([("a", 1)]), encoded([(1, torch.zeros(1))])],
)
def test_anything_else_is_refused(payload: str) -> None:
    with pytest.raises(PayloadRefused):
        decode(payload)
