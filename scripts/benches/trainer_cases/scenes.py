"""Scenes that ours and a peer train alike: a directory with a model, prompts and the numbers of the run.

A prompt is a digit and `=`. In `reward` the model is random and has to learn to repeat the digit. In `fixed` and
`heavy_tail` a short supervised training has given it the lengths of its answers: all are cut at the limit, or each
digit has its own chance of the end token, so that lengths are a mixture of geometric ones with a heavy tail.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.config.trainer import StarterModelConfig
from asyncrl.starter.model import build_model, build_tokenizer, save

SHAPE = StarterModelConfig(hidden_size=128, layers=4, heads=4, kv_heads=4)
"""0.9 M parameters."""
ROWS = 4096
STAGES = ((300, 64, 12), (80, 8, 256), (40, 4, 512))
"""Steps, answers a step and tokens of each in the supervised training: many prompts first, then far places."""
FIRST_LR = 2e-3
REPEATS_DIGIT = 0.5
"""Probability of the prompt's digit where the answer goes on; the rest is spread over all ten."""


@dataclass(frozen=True)
class Scene:
    """What is trained.

    Attributes:
        prompts, group: of one step; samples are their product.
        mean_lengths: tokens of an answer to each digit, if nothing cut it; empty: the model stays random.
        scored: tokens that the reward divides by; 0: the answer's own.
    """

    name: str
    prompts: int = 8
    group: int = 8
    max_new_tokens: int = 16
    lr: float = 1e-5
    mean_lengths: tuple[float, ...] = ()
    scored: int = 0
    seed: int = 0


FIXED = Scene("fixed", mean_lengths=(float("inf"),) * 10)
HEAVY_TAIL = Scene("heavy_tail", max_new_tokens=512, mean_lengths=(6, 8, 11, 15, 20, 28, 40, 64, 120, 400))
REWARD = Scene("reward", lr=1e-3, scored=16)


def make(scene: Scene, home: Path) -> Path:
    """The scene's directory under `home`: model/, train.parquet, scene.json; as it is if it is there already."""
    directory = home / f"{scene.name}-{scene.seed}"
    numbers = {**asdict(scene), "digits": _digits(scene.seed)}
    record = directory / "scene.json"
    if record.exists() and json.loads(record.read_text()) == json.loads(json.dumps(numbers)):
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    model = build_model(SHAPE, tokenizer, scene.seed)
    if scene.mean_lengths:
        _teach_lengths(scene, model, tokenizer.convert_tokens_to_ids)
    save(model, tokenizer, directory / "model", "bfloat16")
    _write_prompts(directory / "train.parquet", numbers["digits"], scene.scored)
    record.write_text(json.dumps(numbers))
    return directory


def _digits(seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(10) for _ in range(ROWS)]


def _write_prompts(path: Path, digits: Sequence[int], scored: int) -> None:
    rows = [
        {
            "data_source": "repeat",
            "prompt": [{"role": "user", "content": f"{digit}="}],
            "ability": "repeat",
            "reward_model": {"style": "rule", "ground_truth": str(digit)},
            "extra_info": {"index": index, "length": scored},
        }
        for index, digit in enumerate(digits)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def _teach_lengths(scene: Scene, model: torch.nn.Module, ids_of: object) -> None:
    """Draw the model to a known distribution of the next token, at every place of an answer of any length."""
    assert callable(ids_of)
    digits = torch.tensor([ids_of(str(digit)) for digit in range(10)])
    user, equals, begin, end = (ids_of(token) for token in ("<|user|>", "=", "<|assistant|>", "<|end|>"))
    source = torch.Generator().manual_seed(scene.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=FIRST_LR, weight_decay=0.0)
    stop = torch.tensor([1.0 / mean for mean in scene.mean_lengths])
    for steps, answers, longest in STAGES:
        length = min(longest, scene.max_new_tokens)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = FIRST_LR * (1 - 0.9 * step / steps)
            asked = torch.randint(10, (answers,), generator=source)
            head = torch.stack([torch.tensor([user, int(digits[one]), equals, begin]) for one in asked])
            said = digits[torch.randint(10, (answers, length - 1), generator=source)]
            logits: Tensor = model(input_ids=torch.cat([head, said], 1)).logits[:, 3:]
            wanted = torch.zeros(answers, logits.shape[-1])
            wanted[:, digits] = (1 - REPEATS_DIGIT) / 10
            wanted[torch.arange(answers), digits[asked]] += REPEATS_DIGIT
            wanted *= (1 - stop[asked]).unsqueeze(1)
            wanted[:, end] = stop[asked]
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.repeat_interleave(length, 0))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            optimizer.step()
