"""Which weights sampled the tokens of a row, by transformers: those that its spans name, and no others."""

from collections.abc import Mapping

import torch
from torch import nn
from transformers import DynamicCache

from buffer import Row


@torch.no_grad()
def logprobs_of(models: Mapping[int, nn.Module], row: Row, *, keeps: bool) -> torch.Tensor:
    """[num_sampled] float32, nats: of the sampled tokens of a row that sampled all after its prompt, each span by the
    model of its version, which reads all tokens before it; or, if it `keeps`, what the versions before it have read,
    with their keys and values."""
    ids, at, cache, num_read = torch.from_numpy(row.token_ids.astype("int64")), row.num_prompt_tokens, DynamicCache(), 0
    found = []
    for span in row.spans:
        if not keeps:
            cache, num_read = DynamicCache(), 0
        end = at + span.num_tokens
        logits = models[span.version](ids[num_read : end - 1].unsqueeze(0), past_key_values=cache).logits[0]
        num_read = end - 1
        found.append(logits[-span.num_tokens :].log_softmax(-1).gather(1, ids[at:end].unsqueeze(1)).squeeze(1))
        at = end
    assert at == len(ids), "all after the prompt was sampled, in spans"
    return torch.cat(found)


def assert_sampled_by(models: Mapping[int, nn.Module], row: Row, *, keeps: bool, error: float) -> None:
    """The logprobs of the row are those of `logprobs_of`, up to `error` nats."""
    told = torch.from_numpy(row.logprobs[row.num_prompt_tokens :])
    torch.testing.assert_close(told, logprobs_of(models, row, keeps=keeps), atol=error, rtol=0)
