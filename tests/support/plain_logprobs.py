"""Logprobs of a row's trained tokens by transformers' own forward pass, alone and without padding."""

import numpy as np
import torch
from torch import Tensor

from buffer import Row


def plain_logprobs(model: torch.nn.Module, row: Row) -> Tensor:
    """[n] nats, of the tokens in the row's mask, at temperature 1."""
    ids = torch.from_numpy(row.token_ids.astype(np.int64))
    with torch.no_grad():
        logprobs_TV = model.eval()(input_ids=ids[None]).logits[0].float().log_softmax(-1)
    at = torch.from_numpy(np.flatnonzero(row.mask))
    return logprobs_TV[at - 1, ids[at]]
