"""The model object that weight loaders see: SGLang's `load_weights`, `named_parameters`, `get_weights_by_name`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.inference.local_engine.model_config import ModelConfig
from asyncrl.inference.local_engine.weights import Weights

WeightsByName = Callable[..., list[object]]
"""(name, truncate_size=100, tp_size=1) -> numbers; a loader may put its own on the instance to report its status."""


class LocalModel:
    """One Llama, Qwen2 or Qwen3 model: its config and its plain weights.

    A custom loader gets this object, as it gets SGLang's model class there. It may call `load_weights`, read
    `named_parameters`, write into the parameters' storage, and set `get_weights_by_name` on the instance.
    """

    get_weights_by_name: WeightsByName

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self.config = config
        self.weights = Weights(config, dtype)
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
        return self.weights.load(named_tensors)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The fused tensors under SGLang's parameter names; their storage never moves."""
        yield from self.weights.fused.items()

    def _first_rows(self, name: str, truncate_size: int = 100, tp_size: int = 1) -> list[object]:
        view = self.weights.views.get(name)
        if view is None:
            raise KeyError(f"no parameter is named {name!r}")
        rows: list[object] = view[:truncate_size].float().tolist()
        return rows
