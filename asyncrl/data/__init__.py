"""Prompts from parquet and JSON Lines: `open_dataset` for a run, `run_check` for a person."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.data.check import CheckReport, run_check
    from asyncrl.data.dataset import Dataset, open_dataset
    from asyncrl.data.rows import PromptRow

__all__ = ["CheckReport", "Dataset", "PromptRow", "open_dataset", "run_check"]

_HOMES = {
    "CheckReport": "check",
    "Dataset": "dataset",
    "PromptRow": "rows",
    "open_dataset": "dataset",
    "run_check": "check",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
