"""Custom weight loaders for servers under test, by what they are told in a tensor's name."""

from collections.abc import Sequence

from torch import Tensor, nn

NAME = "tests.support.weight_loader.load"


def load(model: nn.Module, named_tensors: Sequence[tuple[str, Tensor]]) -> None:
    """Loads dense tensors and reports how many; "@refuse" writes nothing, "@raise" raises."""
    names = [name for name, _ in named_tensors]
    if "@raise" in names:
        raise RuntimeError("a loader that raises")
    refused = "@refuse" in names
    if not refused:
        model.load_weights(list(named_tensors))
    model.get_weights_by_name = lambda name, truncate_size=100, tp_size=1: [int(refused), len(names)]
