"""Tiny random models of the families that the local engine runs, and engines over them."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from asyncrl.inference.local_engine.compute import ComputeWeights, Kind
from asyncrl.inference.local_engine.engine import Engine, EngineSettings
from asyncrl.inference.local_engine.model_config import ModelConfig
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling_params import SamplingParams
from asyncrl.inference.local_engine.text import TextCodec

VOCAB = 51
"""Odd, so that no vector width divides it."""

EOS = 50

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"
"""Token i spells LETTERS[i]; the last token is the end."""

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def make_model(family: str, seed: int = 0, **overrides: object) -> nn.Module:
    """A transformers model of about 0.1 M parameters whose every weight matters."""
    config_class, model_class = FAMILIES[family]
    settings: dict[str, object] = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 176,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": True,
        **overrides,
    }
    if family == "qwen2":
        del settings["head_dim"]
    torch.manual_seed(seed)
    model = model_class(config_class(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(3)
    return model


def make_tokenizer() -> Tokenizer:
    """One letter per token."""
    vocab = {letter: index for index, letter in enumerate(LETTERS)} | {"<|end|>": EOS}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def save_model(directory: Path, family: str = "qwen2", seed: int = 0, **overrides: object) -> Path:
    """Writes a model directory in bfloat16, tokenizer included; returns it."""
    make_model(family, seed, **overrides).to(torch.bfloat16).save_pretrained(directory)
    PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), eos_token="<|end|>").save_pretrained(directory)
    return directory


def local_model(model: nn.Module, dtype: torch.dtype = torch.float32) -> LocalModel:
    """The engine's model with the weights of a transformers model."""
    local = LocalModel(ModelConfig.from_dict(model.config.to_dict()), dtype)
    local.load_weights(model.state_dict().items())
    return local


def make_engine(
    model: nn.Module,
    dtype: torch.dtype = torch.float32,
    compute_dtype: torch.dtype | None = None,
    *,
    kind: Kind | None = None,
    with_text: bool = False,
    **settings: object,
) -> Engine:
    """An engine over a transformers model."""
    local = local_model(model, dtype)
    compute = ComputeWeights(local.weights, compute_dtype or dtype, kind=kind)
    chosen = EngineSettings(**{"max_running": 32, "context_length": 1024, **settings})
    return Engine(local, compute, chosen, TextCodec(make_tokenizer()) if with_text else None)


def make_request(name: object, prompt: Sequence[int], max_new_tokens: int = 16, **params: object) -> Request:
    """A request with a sampling seed of its own, that does not stop at the end token unless told to."""
    seed = name if isinstance(name, int) else 0
    chosen = {"ignore_eos": True, "temperature": 0.8, "sampling_seed": seed, **params}
    fields = {key: chosen.pop(key) for key in ("extra_key", "logprob_start", "stream_every") if key in chosen}
    return Request(str(name), list(prompt), SamplingParams(max_new_tokens=max_new_tokens, **chosen), **fields)


def random_work(count: int, seed: int = 0, *, vocab: int = VOCAB, longest: int = 64) -> list[tuple[list[int], int]]:
    """Prompts and output lengths of many sizes."""
    rng = random.Random(seed)
    return [
        ([rng.randrange(vocab) for _ in range(rng.randint(1, longest))], min(160, int(rng.lognormvariate(3.2, 1)) + 1))
        for _ in range(count)
    ]


def reference_logprobs(model: nn.Module, request: Request, temperature: float) -> list[float]:
    """The transformers model's logprobs of a request's output."""
    ids = torch.tensor([request.prompt + request.output])
    with torch.no_grad():
        logits = model(ids).logits[0, len(request.prompt) - 1 : -1].float() / temperature
    chosen = torch.tensor(request.output).unsqueeze(1)
    return torch.log_softmax(logits, -1).gather(1, chosen).squeeze(1).tolist()
