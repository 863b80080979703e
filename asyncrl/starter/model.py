"""The tiny model: a Llama with random weights, a character tokenizer with a chat template, saved in the wire dtype."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from asyncrl.config.trainer import StarterModelConfig
from asyncrl.errors import ConfigError

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz +-*=:,?."
UNKNOWN = "?"
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|user|>", "<|assistant|>", "<|system|>")
TOOL_ROLE = "<|tool|>"
SIGN = "%"
CALL_PIECES = ("<tool_call>", "</tool_call>", '{"name": "', '", "arguments": {"', '": "', '"}}')
"""What calls in Hermes' form are made of besides names and values: a token each, as a trained vocabulary has them."""
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
MAX_POSITIONS = 4096  # rotary positions cost nothing, and servers refuse a context longer than this


def build_tokenizer(*, calls_tools: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character and each role; anything it does not know is `?`.

    Args:
        calls_tools: have a role for what tools answer, a sign more for arithmetic, and tokens for the pieces of calls.
    """
    roles, characters = (*ROLES, TOOL_ROLE) if calls_tools else ROLES, CHARACTERS + (SIGN if calls_tools else "")
    vocabulary = {token: index for index, token in enumerate((PAD, END, *roles, *characters))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=list(roles),
        model_max_length=MAX_POSITIONS,
    )
    if calls_tools:
        fast.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in CALL_PIECES])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(config: StarterModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama in float32 with random weights, the same for the same seed.

    A Llama because transformers reads a tokenizer beside a `qwen2` config as Qwen2Tokenizer, which drops spaces.
    Raises:
        ConfigError: heads that do not divide the width, or are no multiple of the key and value heads.
    """
    if config.hidden_size % (2 * config.heads):
        raise ConfigError(
            f"starter.model.hidden_size = {config.hidden_size} must be a multiple of 2 x starter.model.heads = "
            f"{config.heads}: each head needs an even width for rotary positions."
        )
    if config.heads % config.kv_heads:
        raise ConfigError(
            f"starter.model.heads = {config.heads} must be a multiple of starter.model.kv_heads = {config.kv_heads}: "
            "query heads share key and value heads in equal parts."
        )
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=3 * config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(shape)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path, wire_dtype: str) -> None:
    """Write model and tokenizer as a Hugging Face directory whose words are exactly those that servers will hold."""
    transformers_logging.disable_progress_bar()
    model.to(getattr(torch, wire_dtype)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    # Older readers know the dtype by its old name, and the tokenizer's class only by its public one.
    _amend(directory / "config.json", {"torch_dtype": wire_dtype})
    _amend(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})


def _amend(path: Path, changes: dict[str, str]) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | changes, indent=2, sort_keys=True) + "\n", encoding="utf-8")
