"""Routers of models with experts: float32 whatever is around them, and led by what the server recorded.

A server and the trainer round differently, so that a router here may send a token to other experts than there, and the
token's probability jumps. Where a row says which experts the server took, the trainer takes the same ones; the gates
are its own router's, over these experts, so that the router learns (R3, arXiv 2510.11370, section 4).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from asyncrl.data.routed_experts import COLUMN
from asyncrl.errors import ConfigError, DataError
from asyncrl.trainer.batch import Batch, Ints


def routers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(name, router) of each layer with experts, by what transformers knows of its models."""
    kinds: list[type[nn.Module]] = []
    for model in (part for part in module.modules() if isinstance(part, PreTrainedModel)):
        recorder = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
        for one in recorder if isinstance(recorder, (list, tuple)) else [recorder]:
            kind = getattr(one, "target_class", one)
            # Some name the layer of experts, whose router is a linear layer inside it: nothing of that is looked at.
            if isinstance(kind, type) and "Router" in kind.__name__:
                kinds.append(kind)
    chosen = tuple(kinds)
    for name, part in module.named_modules():
        if isinstance(part, chosen):
            yield name, part


def compute_in_float32(module: nn.Module) -> None:
    """Have every router compute in float32: a rounded logit can be another choice."""
    for _, router in routers(module):
        router.forward = _in_float32(router.forward)


def _in_float32(forward: Callable[..., Any]) -> Callable[..., Any]:
    def in_float32(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(hidden.device.type, enabled=False):
            return forward(hidden.float(), *args, **kwargs)

    return in_float32


class Routing:
    """Leads the routers of a model from one pass to the next."""

    def __init__(self, module: PreTrainedModel) -> None:
        named = list(routers(module))
        self._num_layers = int(module.config.get_text_config().num_hidden_layers)
        self._layers = [_layer(name) for name, _ in named]
        # What a pass was led by stays until the next one: its backward pass may run the routers again.
        self._experts_LMK: Tensor | None = None
        for place, (name, router) in enumerate(named):
            router.forward = self._led(router.forward, place, name)

    def lead(self, experts_MLK: Tensor | None) -> None:
        """Send the tokens of the next pass to these experts.

        Args:
            experts_MLK: [M, layers, K] int64, of the tokens in the order in which the model reads them; negative: to
                the router's own. None: all to the router's own.
        Raises:
            DataError: another number of layers than the model has.
        """
        if experts_MLK is None or not self._layers:
            self._experts_LMK = None
            return
        found = experts_MLK.shape[1]
        if found not in (len(self._layers), self._num_layers):
            raise DataError(
                f"Row.columns.{COLUMN} is of {found} layers, the model has {len(self._layers)} with experts and "
                f"{self._num_layers} in all: the rows were sampled from another model. Serve the model that is trained."
            )
        chosen = experts_MLK if found == len(self._layers) else experts_MLK[:, self._layers]
        self._experts_LMK = chosen.transpose(0, 1).contiguous()

    def _led(self, forward: Callable[..., Any], place: int, name: str) -> Callable[..., Any]:
        def led(*args: Any, **kwargs: Any) -> Any:
            if self._experts_LMK is None:
                return forward(*args, **kwargs)
            with _Choice(self._experts_LMK[place]) as choice:
                outcome = forward(*args, **kwargs)
            if choice.num_made != 1:
                raise ConfigError(
                    f"{name} chose its experts {choice.num_made} times by torch.topk, where the recorded ones can take "
                    "the place of one choice only. Set actor.replay_experts to false to train this model without."
                )
            return outcome

        return led


class _Choice(TorchFunctionMode):
    """Within it the largest K of each token are the recorded experts, with the values that they have."""

    def __init__(self, experts_MK: Tensor) -> None:
        super().__init__()
        self._experts_MK, self.num_made = experts_MK, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outcome = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or outcome.indices.shape != self._experts_MK.shape:
            return outcome
        self.num_made += 1
        indices = torch.where(self._experts_MK < 0, outcome.indices, self._experts_MK)
        return torch.return_types.topk((args[0].gather(-1, indices), indices))


def is_recorded(batch: Batch, rows_R: Ints) -> bool:
    """Whether the server recorded the experts of any of these rows."""
    return any(COLUMN in batch.rows[row].columns for row in rows_R.tolist())


def recorded_experts(
    batch: Batch, rows_R: Ints, starts_R: Ints, lengths_R: Ints, num_tokens: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None:
    """[M, layers, K] of the tokens of a micro-batch, -1 where a row or a token has no record; None without any.

    Args:
        rows_R: which of the batch's rows.
        starts_R, lengths_R: place of each row's first token among the `num_tokens`, and how many are read.
    Raises:
        DataError: records of two rows differ in layers or experts a token.
    """
    filled: np.ndarray[tuple[int, ...], np.dtype[np.int64]] | None = None
    for row, start, length in zip(rows_R.tolist(), starts_R.tolist(), lengths_R.tolist(), strict=True):
        column = batch.rows[row].columns.get(COLUMN)
        if column is None:
            continue
        if filled is None:
            filled = np.full((num_tokens, *column.shape[1:]), -1, dtype=np.int64)
        if column.ndim != 3 or column.shape[1:] != filled.shape[1:] or not np.issubdtype(column.dtype, np.integer):
            raise DataError(
                f"Row.columns.{COLUMN} is {column.dtype} {list(column.shape)} in one row; it must be integers [T, "
                f"layers, K], with the layers and K of the others ({list(filled.shape[1:])}): the rows were sampled "
                "from different models."
            )
        filled[start : start + length] = column[:length]
    return filled


def _layer(name: str) -> int:
    """The number of the layer that a module is in."""
    found = re.search(r"\.layers?\.(\d+)\.", f".{name}.")
    return int(found.group(1)) if found else 0
