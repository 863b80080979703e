"""The model object that weight loaders see: SGLang's `load_weights`, `named_parameters`, `get_weights_by_name`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.inference.local_engine.copies import Where
from asyncrl.inference.local_engine.model_config import ModelConfig
from asyncrl.inference.local_engine.weights import Weights

WeightsByName = Callable[..., list[object]]
"""(name, truncate_size=100, tp_size=1) -> numbers; a loader may put its own on the instance to report its status."""


@dataclass
class Written:
    """What a loader wrote, as far as it is known: of whole tensors and of words, by fused name. Is that all?"""

    names: set[str] = field(default_factory=set)
    words: list[tuple[str, Where]] = field(default_factory=list)
    is_all: bool = False


class LocalModel:
    """One Llama, Qwen2 or Qwen3 model: its config and its plain weights.

    A custom loader gets this object, as it gets SGLang's model class there. It may call `load_weights`, read
    `named_parameters`, write into the parameters' storage, and set `get_weights_by_name` on the instance. What it wrote
    into storage it may say, all of it (`words_written`); else everything is taken as changed.
    """

    get_weights_by_name: WeightsByName

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self.config = config
        self.weights = Weights(config, dtype)
        self._storages = {tensor.data_ptr(): name for name, tensor in self.weights.fused.items()}
        self._written = Written()
        self._notes_words = False
        if config.model_type == "llama":
            # SGLang's Llama has this method and its Qwen classes do not: there the route answers 400.
            self.get_weights_by_name = self._first_rows

    @classmethod
    def from_dir(cls, path: Path, dtype: torch.dtype) -> LocalModel:
        """Loads a Hugging Face model directory, casting to `dtype`.

        Raises:
            UnsupportedModel: the config asks for something the engine does not implement.
            WeightsMismatch: the files do not fit the config.
        """
        model = cls(ModelConfig.from_dir(path), dtype)
        model.weights.load_dir(path)
        return model

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Copies checkpoint tensors into place with `Tensor.copy_`, and nothing else, so a recording tensor may pass.

        Returns:
            The fused parameter names that were written.
        Raises:
            WeightsMismatch: an unknown name or another shape.
        """
        names = self.weights.load(named_tensors)
        self._written.names |= names
        return names

    def words_written(self, changes: Iterable[tuple[Tensor, Where | Tensor | slice]]) -> None:
        """A loader says what it wrote into parameters' storage, other than by `load_weights`, since it was called.

        Args:
            changes: a storage's words, [n] integers, and which of them changed: [m] places, or a slice. Places are read
                until the loader returns.
        """
        if not self._notes_words:
            return
        self._written.is_all = True
        for words, where in changes:
            name = self._storages.get(words.data_ptr())
            if name is None:
                self._written.is_all = False  # of a parameter that is not ours we know nothing
            elif isinstance(where, slice):
                self._written.names.add(name)
            else:
                self._written.words.append((name, where.numpy() if isinstance(where, Tensor) else where))

    def take_written(self) -> Written:
        """What was written since this was last called; words are noted from the first call on."""
        self._notes_words = True
        taken, self._written = self._written, Written()
        return taken

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The fused tensors under SGLang's parameter names; their storage never moves."""
        yield from self.weights.fused.items()

    def _first_rows(self, name: str, truncate_size: int = 100, tp_size: int = 1) -> list[object]:
        view = self.weights.views.get(name)
        if view is None:
            raise KeyError(f"no parameter is named {name!r}")
        rows: list[object] = view[:truncate_size].float().tolist()
        return rows
