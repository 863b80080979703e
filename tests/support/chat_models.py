"""Small model directories in the shape of well-known chat models: a trained tokenizer and a template each."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.chat_templates import CHATML, GEMMA, GPT_OSS, LLAMA3, MISTRAL, MISTRAL_V3, STARTER

TEXT = [
    "What is 2+2? The answer is four. sort 5281 hello world, user assistant system tool model",
    'Use the tools: {"name": "calc", "arguments": {"expr": "4*5"}} <tool_response> reasoning content',
    "You are a helpful assistant.\n\nThink step by step.\nToday is a good day; knowledge cutoff. caf\u00e9 \u2764",
]

_MISTRAL_MARKERS = [
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
]
FAMILIES: dict[str, tuple[str, list[str], str, str | None, list[int] | None]] = {
    # template, special tokens, eos, bos
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None, None),
    "llama3": (
        LLAMA3,
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>"],
        "<|eot_id|>",
        "<|begin_of_text|>",
        [1, 5],
    ),
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], "</s>", "<s>", None),
    "mistral_v3": (MISTRAL_V3, ["<s>", "</s>", *_MISTRAL_MARKERS], "</s>", "<s>", None),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<eos>", "<bos>", [1, 3]),
    "gpt_oss": (
        GPT_OSS,
        ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"],
        "<|return|>",
        None,
        [4, 5],
    ),
    "starter": (STARTER, ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"], "<|end|>", None, None),
}

SENTENCE_PIECE = ("mistral", "mistral_v3", "gemma")


def make_model_dir(path: Path, family: str) -> Path:
    """Write the tokenizer's files of a family into `path`."""
    template, specials, eos, bos, eos_ids = FAMILIES[family]
    path.mkdir(parents=True, exist_ok=True)
    make_tokenizer(family, specials, bos).save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "chat_template": template}
    if bos:
        config["bos_token"] = bos
    if family == "gemma":  # newer directories keep the template in a file of its own
        (path / "chat_template.jinja").write_text(config.pop("chat_template"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    if eos_ids is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos_ids}))
    return path


def make_tokenizer(family: str, specials: list[str], bos: str | None) -> Tokenizer:
    """A byte-level tokenizer; for Mistral and Gemma one in SentencePiece's form, for starter one of characters."""
    if family == "starter":
        chars = "0123456789abcdefghijklmnopqrstuvwxyz +-*=:,?.\n"
        vocab = {token: i for i, token in enumerate([*specials, *chars, "<unk>"])}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(specials)
        return tokenizer
    tokenizer = Tokenizer(models.BPE(byte_fallback=family in SENTENCE_PIECE))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if family in SENTENCE_PIECE:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        if family != "gemma":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), tokenizer.normalizer])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        alphabet = sorted({*"".join(TEXT), "\u2581"})
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    extra = [f"<0x{byte:02X}>" for byte in range(256)] if family in SENTENCE_PIECE else []
    trainer = trainers.BpeTrainer(
        vocab_size=len(specials) + len(extra) + len(alphabet) + 120,
        special_tokens=[*specials],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if extra:
        tokenizer = _with_bytes(tokenizer, extra)
    if bos:  # as in the originals: adds a second bos unless it is told not to
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return tokenizer


def _with_bytes(tokenizer: Tokenizer, extra: list[str]) -> Tokenizer:
    """The tokenizer with a token for every byte, which characters outside its alphabet fall back to."""
    described = json.loads(tokenizer.to_str())
    vocab = described["model"]["vocab"]
    for token in extra:
        vocab.setdefault(token, len(vocab))
    return Tokenizer.from_str(json.dumps(described))
