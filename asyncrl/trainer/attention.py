"""Attention within the documents of a packed row, for any model that takes its attention function by name.

`ATTENTION` is registered with transformers' AttentionInterface, and deliberately not with its AttentionMaskInterface:
a name without masks is given none, so that no mask of tokens by tokens is ever made. Which tokens see which follows
from the documents alone, and these come with the model's keyword arguments.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from asyncrl.errors import ConfigError
from asyncrl.trainer.documents import Documents

ATTENTION = "within_documents"

_WITHOUT_EFFECT = frozenset(
    ("position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states", "output_router_logits")
)
"""Keyword arguments that reach an attention function and do not change what it gives."""
_LARGEST_HEAD = 256
"""Widest head of the variable-length kernel; it must be a multiple of 8 too."""


class CannotPack(ConfigError):
    """A model asks its attention for something that `within_documents` does not compute."""


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
        query_1HTD: H heads; key_1KTD, value_1KTD: K heads, of which H is a multiple.
        documents: bounds of the row's T tokens.
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
            "within the documents of a packed row. Set actor.packing (and critic.packing) to false: rows are padded "
            "then."
        )
    window = sliding_window if sliding_window is not None and sliding_window < documents.longest else None
    attend = _by_kernel if _has_kernel(query_1HTD, value_1KTD) else _by_document
    return attend(query_1HTD, key_1KTD, value_1KTD, documents, scaling, window), None


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
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, scaling: float | None, window: int | None
) -> Tensor:
    dtype, longest = _kernel_dtype(query), documents.longest
    query_THD, key_TKD, value_TKD = (states[0].transpose(0, 1).to(dtype) for states in (query, key, value))
    attended = varlen_attn(
        query_THD,
        key_TKD,
        value_TKD,
        documents.bounds,
        documents.bounds,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(attended, Tensor)
    return attended.unsqueeze(0)


def _by_document(
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, scaling: float | None, window: int | None
) -> Tensor:
    """One call of torch's attention for each run of documents that are equally long."""
    sizes = [number * length for number, length in documents.runs]
    # Split, not sliced: the gradient of a slice is as long as the row, once for each document.
    parts = zip(*(torch.split(states, sizes, dim=2) for states in (query, key, value)), strict=True)
    attended = []
    for part, (number, length) in zip(parts, documents.runs, strict=True):
        query_nHLD, key_nKLD, value_nKLD = (states.unflatten(2, (number, length))[0].transpose(0, 1) for states in part)
        seen = None if window is None or window >= length else _window(length, window, query.device)
        out_nHLD = scaled_dot_product_attention(
            query_nHLD,
            key_nKLD,
            value_nKLD,
            attn_mask=seen,
            is_causal=seen is None,
            scale=scaling,
            enable_gqa=True,
        )
        attended.append(out_nHLD.transpose(1, 2).flatten(0, 1))
    return torch.cat(attended).unsqueeze(0)


def _window(length: int, window: int, device: torch.device) -> Tensor:
    """[L, L] bool, causal and at most `window` tokens back, the token itself included."""
    places = torch.arange(length, device=device)
    back = places[:, None] - places
    return (back >= 0) & (back < window)
