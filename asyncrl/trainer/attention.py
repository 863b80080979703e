"""Attention within the documents of a packed row, for any model that takes its attention function by name.

`ATTENTION` is registered with transformers' AttentionInterface, and deliberately not with its AttentionMaskInterface:
a name without masks is given none, so that no mask of tokens by tokens is ever made. Which tokens see which follows
from the documents alone, and these come with the model's keyword arguments.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from asyncrl.errors import ConfigError
from asyncrl.trainer.documents import Documents, Stretch
from asyncrl.trainer.peers import whole_row
from asyncrl.trainer.repeated import repeated

ATTENTION = "within_documents"

_WITHOUT_EFFECT = frozenset(
    ("position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states", "output_router_logits")
)
"""Keyword arguments that reach an attention function and do not change what it gives."""
_LARGEST_HEAD = 256
"""Widest head of the variable-length kernel; it must be a multiple of 8 too."""


class CannotPack(ConfigError):
    """A model asks its attention for something that `within_documents` does not compute; `reason` says for what."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        """The reason and the next step."""
        return f"{self.reason}. Set actor.packing and critic.packing to false: rows are padded then."


def within_documents(
    module: nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    attention_mask: Tensor | None,
    *,
    documents: Documents | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention of each document of a packed row with itself.

    Args:
        module: the attention layer that calls.
        query_1HTD: H heads; key_1KTD, value_1KTD: K heads, of which H is a multiple. Of this rank's T tokens.
        documents: bounds of the row, and which of its tokens these are.
        scaling: factor on the scores; None: 1 / sqrt(D).
        sliding_window: a token sees so many tokens, itself included; None: all before it.
        others: refused, but for those without effect and those that are None or False.
    Returns:
        [1, T, H, D], and no weights.
    Raises:
        CannotPack: the layer asks for a mask, a bias or another term of its own, or says nothing of documents.
    """
    wanted = {name for name, value in others.items() if value is not None and value is not False} - _WITHOUT_EFFECT
    if is_causal is False or not getattr(module, "is_causal", True):
        wanted.add("is_causal = False")
    if attention_mask is not None:
        wanted.add("attention_mask")
    if dropout:
        wanted.add("dropout")
    if documents is None:
        wanted.add("no documents")
    if wanted or documents is None:
        raise CannotPack(
            f"{type(module).__name__} calls its attention with {', '.join(sorted(wanted))}, which is not computed "
            "within the documents of a packed row"
        )
    if documents.peers is not None:
        states = whole_row(torch.cat([key_1KTD, value_1KTD], dim=-1)[0], documents.peers).unsqueeze(0)
        key_1KTD, value_1KTD = torch.split(states, [key_1KTD.shape[-1], value_1KTD.shape[-1]], dim=-1)
    if documents.repeats is not None:
        key_1KTD, value_1KTD = (repeated(states, documents.repeats) for states in (key_1KTD, value_1KTD))
    attend = _by_kernel if _has_kernel(query_1HTD, value_1KTD) else _by_document
    if len(documents.stretches) == 1:
        return attend(query_1HTD, key_1KTD, value_1KTD, documents.stretches[0], scaling, sliding_window), None
    attended = []
    sizes = [stop - start for start, stop in (stretch.queries for stretch in documents.stretches)]
    for query, stretch in zip(torch.split(query_1HTD, sizes, dim=2), documents.stretches, strict=True):
        seen = slice(*stretch.keys)
        attended.append(attend(query, key_1KTD[:, :, seen], value_1KTD[:, :, seen], stretch, scaling, sliding_window))
    return torch.cat(attended, dim=1), None


AttentionInterface.register(ATTENTION, within_documents)


def _has_kernel(query: Tensor, value: Tensor) -> bool:
    width = query.shape[-1]
    return (
        query.is_cuda
        and _kernel_dtype(query) in (torch.bfloat16, torch.float16)
        and width == value.shape[-1]
        and width <= _LARGEST_HEAD
        and width % 8 == 0
    )


def _kernel_dtype(query: Tensor) -> torch.dtype:
    """What torch's own attention would compute in: autocast knows that one, and not the variable-length kernel."""
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, stretch: Stretch, scaling: float | None, window: int | None
) -> Tensor:
    dtype = _kernel_dtype(query)
    query_THD, key_TKD, value_TKD = (states.squeeze(0).transpose(0, 1).to(dtype) for states in (query, key, value))
    attended_THD = varlen_attn(
        query_THD,
        key_TKD,
        value_TKD,
        stretch.query_bounds,
        stretch.key_bounds,
        stretch.longest_query,
        stretch.longest_key,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(attended_THD, Tensor)
    return attended_THD.unsqueeze(0)


def _by_document(
    query: Tensor, key: Tensor, value: Tensor, stretch: Stretch, scaling: float | None, window: int | None
) -> Tensor:
    """One call of torch's attention for each run of documents that are equally long."""
    queries = _split(query, [number * length for number, length, _ in stretch.runs])
    sizes = [number * length for number, _, length in stretch.runs]
    keys, values = (_split(states, sizes) for states in (key, value))
    attended = []
    for query_1HTD, key_1KTD, value_1KTD, (number, _, length) in zip(queries, keys, values, stretch.runs, strict=True):
        query_nHLD, key_nKLD, value_nKLD = (
            torch.unflatten(states.squeeze(0), 1, (number, -1)).transpose(0, 1)
            for states in (query_1HTD, key_1KTD, value_1KTD)
        )
        is_whole = query_nHLD.shape[2] == length
        is_narrow = window is not None and window < length
        seen = None if is_whole and not is_narrow else _seen(query_nHLD.shape[2], length, window, query.device)
        out_nHLD = _by_torch(query_nHLD, key_nKLD, value_nKLD, seen, scaling)
        attended.append(out_nHLD.transpose(1, 2).flatten(0, 1))
    return (attended[0] if len(attended) == 1 else torch.cat(attended)).unsqueeze(0)


def _split(states_1HTD: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """Along T. Split, not sliced: the gradient of a slice is as long as the row, once for each document."""
    return [states_1HTD] if len(sizes) == 1 else torch.split(states_1HTD, sizes, dim=2)


def _by_torch(
    query_nHLD: Tensor, key_nKLD: Tensor, value_nKLD: Tensor, seen: Tensor | None, scaling: float | None
) -> Tensor:
    """Torch's attention; on a CPU in float32 where it would be in less, and the result is as narrow as it was.

    Torch's backward pass in bfloat16 takes 40 times as long there as in float32, for documents of 20 tokens.
    """
    dtype, is_causal = _kernel_dtype(query_nHLD), seen is None
    if query_nHLD.is_cpu and dtype.itemsize < torch.float32.itemsize:
        states = (query_nHLD.float(), key_nKLD.float(), value_nKLD.float())
        with torch.autocast("cpu", enabled=False):
            wide = scaled_dot_product_attention(
                *states, attn_mask=seen, is_causal=is_causal, scale=scaling, enable_gqa=True
            )
        return wide.to(dtype)
    return scaled_dot_product_attention(
        query_nHLD, key_nKLD, value_nKLD, attn_mask=seen, is_causal=is_causal, scale=scaling, enable_gqa=True
    )


def _seen(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> Tensor:
    """[queries, keys] bool: the last query sees the last key, and each at most `window` keys, its own included."""
    places = torch.arange(num_keys, device=device)
    back = places[num_keys - num_queries :, None] - places
    return (back >= 0) & (back < (num_keys if window is None else window))
