"""Reads the golden cases and compares results with them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch
from torch import Tensor

from tests.support.golden_cases import CASES_DIR

Adapter = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""(inputs, params) -> results by the names a case expects."""


@dataclass(frozen=True)
class Case:
    name: str
    function: str
    inputs: Mapping[str, Any]
    params: Mapping[str, Any]
    expected: Mapping[str, Any]
    rtol: float
    atol: float
    compare_where: str | None


def group_ids(labels: Sequence[str]) -> Tensor:
    """Opaque labels as numbers, in the order they come in."""
    order = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return torch.tensor([order[label] for label in labels])


def in_float64(case: Case) -> Case:
    """The case with its float32 tensors in double precision, which hold the same numbers."""
    inputs = {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in case.inputs.items()
    }
    return replace(case, inputs=inputs)


def load_cases(directory: Path = CASES_DIR) -> list[Case]:
    """Every case of every file."""
    cases = []
    for path in sorted(directory.glob("*.json")):
        for raw in json.loads(path.read_text())["cases"]:
            cases.append(
                Case(
                    name=raw["name"],
                    function=raw["function"],
                    inputs=decode(raw["inputs"]),
                    params=raw["params"],
                    expected=decode(raw["expected"]),
                    rtol=raw["tolerance"]["rtol"],
                    atol=raw["tolerance"]["atol"],
                    compare_where=raw.get("compare_where"),
                )
            )
    return cases


def decode(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [decode(entry) for entry in value]
    if isinstance(value, dict):
        if {"dtype", "shape", "data"} <= value.keys():
            data = _numbers(value["data"])
            return torch.tensor(data, dtype=getattr(torch, value["dtype"])).reshape(value["shape"])
        return {key: decode(entry) for key, entry in value.items()}
    return value


def _numbers(data: Any) -> Any:
    return [_numbers(entry) for entry in data] if isinstance(data, list) else float(data)


def compare(case: Case, got: Mapping[str, Any]) -> None:
    """Every expected result is there and within tolerance."""
    missing = case.expected.keys() - got.keys()
    assert not missing, f"{case.name}: no result named {sorted(missing)}"
    for key, want in case.expected.items():
        _compare(case, key, got[key], want)


def _compare(case: Case, key: str, got: Any, want: Any) -> None:
    if isinstance(want, dict) and key == "metrics":
        for name, value in want.items():
            assert name in got, f"{case.name}: metric {name} is missing, there are {sorted(got)}"
            _close(case, f"metrics.{name}", got[name], value)
    elif isinstance(want, Tensor) and case.compare_where and want.shape == case.inputs[case.compare_where].shape:
        mask = case.inputs[case.compare_where] > 0
        _close(
            case, key, got[key] if isinstance(got, dict) else torch.where(mask, got, 0.0), torch.where(mask, want, 0.0)
        )
        assert (got[~mask] == 0).all(), f"{case.name}: {key} is not 0 at masked positions"
    elif _is_plain(want):
        assert got == want, f"{case.name}: {key} = {got}, expected {want}"
    else:
        _close(case, key, got, want)


def _is_plain(value: Any) -> bool:
    """Names, truth values and counts: compared by equality."""
    if isinstance(value, dict):
        return True
    entries: Sequence[Any] = value if isinstance(value, list) else [value]
    return all(isinstance(entry, str | bool) for entry in entries)


def _close(case: Case, key: str, got: Any, want: Any) -> None:
    if isinstance(want, list) and want and isinstance(want[0], Tensor):
        for i, (one_got, one_want) in enumerate(zip(got, want, strict=True)):
            _close(case, f"{key}[{i}]", one_got, one_want)
        return
    got = torch.as_tensor(got).detach().double()
    want = torch.as_tensor(want).double()
    assert got.shape == want.shape, f"{case.name}: {key} has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    distance = (got - want).abs()
    allowed = case.atol + case.rtol * want.abs()
    assert bool((distance <= allowed).all()), (
        f"{case.name}: {key} is off by {distance.max():.3g}\n got {got}\nwant {want}"
    )
