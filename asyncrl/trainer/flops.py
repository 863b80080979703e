"""Floating-point operations of the optimizer's passes, for the share of the devices' peak that they reach.

Counted is what the model needs, from its weights, its configuration and the real lengths of the rows: no padding, no
recomputed activations, no pass without gradient. Logits are counted where the trainer makes them: at positions that
predict a trained token. A matrix product counts two operations a weight and token, as everybody counts.

Source: PaLM, arXiv:2204.02311, appendix B (MFU); Korthikanti et al., arXiv:2205.05198 (HFU adds recomputation).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from asyncrl.trainer.batch import Batch
from asyncrl.trainer.tally import Tally

FLOPS, RECOMPUTED = "perf/flops/actor", "perf/flops/recomputed"
UPDATE = "update_actor"
"""The phase of a step that these operations are done in (metrics.phases)."""


@dataclass(frozen=True)
class ModelFlops:
    """Operations of a causal language model, forward.

    Attributes:
        trained, frozen: of the layers' matrix products, a token; by whether their weights are trained. Of routed
            experts those of the ones that a token goes to.
        head: of the output head, a predicted token.
        head_is_trained: whether its weights are.
        windows: of each attention layer the tokens that one may look back to, itself included; None: all before it.
        pair: of one attention layer, a pair of tokens of which one looks at the other: scores and weighted values.
    """

    trained: float
    frozen: float
    head: float
    head_is_trained: bool
    windows: tuple[int | None, ...]
    pair: float

    @classmethod
    def of(cls, module: nn.Module) -> "ModelFlops":
        """Of a Hugging Face causal language model, split over ranks or not, with adapters or without."""
        head = module.get_output_embeddings().weight  # type: ignore[operator]  # all causal models have it
        config: Any = module.config
        config = config.get_text_config()
        products = [(weight, used) for weight, used in _products(module, config) if weight is not head]
        return cls(
            trained=2.0 * sum(used for weight, used in products if weight.requires_grad),
            frozen=2.0 * sum(used for weight, used in products if not weight.requires_grad),
            head=2.0 * head.numel(),
            head_is_trained=head.requires_grad,
            windows=tuple(_windows(config)),
            pair=_pair(config),
        )

    def layers(self, lengths: Sequence[int]) -> float:
        """Forward through the layers, of rows so many tokens long."""
        return (self.trained + self.frozen) * sum(lengths) + self._attention(lengths)

    def training(self, lengths: Sequence[int], num_predicted: int) -> float:
        """Forward and backward, which takes a product for the inputs, and one for the weights if they are trained.

        Args:
            lengths: tokens of each row.
            num_predicted: tokens that logits are made for.
        """
        tokens, head = sum(lengths), self.head * num_predicted
        products = (3 * self.trained + 2 * self.frozen) * tokens + (3 if self.head_is_trained else 2) * head
        return products + 3 * self._attention(lengths)

    def _attention(self, lengths: Sequence[int]) -> float:
        pairs = {window: sum(_pairs(length, window) for length in lengths) for window in set(self.windows)}
        return self.pair * sum(pairs[window] for window in self.windows)


class Passes(Protocol):
    """The part of ActorConfig that says how often the model is passed through."""

    @property
    def ppo_epochs(self) -> int: ...
    @property
    def gradient_checkpointing(self) -> bool: ...


def count_flops(model: ModelFlops, batch: Batch, tally: Tally, passes: Passes) -> None:
    """Add one rank's share of a step: `ppo_epochs` passes, whose layers `gradient_checkpointing` computes twice."""
    epochs = passes.ppo_epochs
    lengths = [len(batch.rows[row].token_ids) for rows in batch.rows_by_mini_batch for row in rows.tolist()]
    tally.count(FLOPS, epochs * model.training(lengths, batch.num_trained))
    tally.count(RECOMPUTED, epochs * model.layers(lengths) if passes.gradient_checkpointing else 0.0)


def count_saved(model: ModelFlops, lengths: Sequence[int], tally: Tally, passes: Passes) -> None:
    """Take off what a pass did not do: prompts so many tokens long that it read for another row already."""
    if lengths:
        tally.count(FLOPS, -model.training(lengths, 0))
        tally.count(RECOMPUTED, -model.layers(lengths) if passes.gradient_checkpointing else 0.0)


def utilisation(
    flops: float, recomputed: float, seconds: float, num_devices: int, peak: float | None
) -> dict[str, float]:
    """Metrics of a step.

    Args:
        flops, recomputed: of all ranks.
        seconds: that the optimizer's passes took.
        num_devices: one a rank.
        peak: operations a second of one device; None: not known, and only what is reached is told.
    """
    if flops <= 0 or seconds <= 0:
        return {}
    reached = flops / seconds / num_devices
    values = {"perf/tflops/actor": reached / 1e12}
    if peak is not None:
        values["perf/mfu/actor"] = reached / peak
        values["perf/hfu/actor"] = (flops + recomputed) / seconds / num_devices / peak
    return values


def _products(module: nn.Module, config: Any) -> Iterator[tuple[nn.Parameter, float]]:
    """Weights that tokens are multiplied with, and how many of their numbers one token meets."""
    chosen = next((n for name in _CHOSEN if (n := getattr(config, name, None)) is not None), None)
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding):
            continue
        experts = _experts_around(module, name)
        for weight in part.parameters(recurse=False):
            if weight.dim() < 2:
                continue
            if experts and chosen is not None:
                yield weight, weight.numel() * chosen / experts
            else:
                yield weight, float(weight.numel())


_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk")
"""What configurations call the number of experts that a token goes to."""


def _experts_around(module: nn.Module, name: str) -> int:
    """How many routed experts there are in the layer, if `name` is of their weights; else 0."""
    path = name.split(".")
    if "experts" not in path:
        return 0
    experts = module.get_submodule(".".join(path[: path.index("experts") + 1]))
    if isinstance(experts, nn.ModuleList):
        return len(experts)
    return max((weight.shape[0] for weight in experts.parameters() if weight.dim() == 3), default=0)


def _windows(config: Any) -> Iterable[int | None]:
    num_layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    if kinds := getattr(config, "layer_types", None):
        looks_back = {"full_attention": None, "sliding_attention": window, "chunked_attention": window}
        return [looks_back[kind] for kind in kinds if kind in looks_back]
    return [window if getattr(config, "use_sliding_window", True) else None] * num_layers


def _pair(config: Any) -> float:
    """Two operations for each number of a key, and of a value, in every head."""
    heads: int = config.num_attention_heads
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
    of_key: int = getattr(config, "qk_head_dim", None) or head_dim
    of_value: int = getattr(config, "v_head_dim", None) or head_dim
    return 2.0 * heads * (of_key + of_value)


def _pairs(length: int, window: int | None) -> int:
    """Pairs of a row in which a token looks at itself or one before it."""
    if window is None or window >= length:
        return length * (length + 1) // 2
    return window * (window + 1) // 2 + (length - window) * window
