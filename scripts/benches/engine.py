"""The local engine against transformers' static-batch generate: same model, same requests, one thread, interleaved.

`vs_generate_32`: one batch of 32 requests of mixed lengths. `vs_generate_steady`: 128 of them, 32 at a time; generate
takes them as four static batches. Both on the 4 M model in float32, its weights laid out for this CPU; beside them the
same in bfloat16, and the 0.1 M model in float32. Useful tokens only are counted; both sides return the logprob of every
sampled token. generate is told each row's length and stops when the longest is reached. Times are CPU seconds of one
thread, which on a quiet machine are the wall's, and on a shared one do not count who else ran. A ratio is the median
over rounds of that round's ratio; `_low` and `_high` are its extremes.

Not shown: HTTP, prompts shared within a group (all are distinct here; sharing favours the engine), more threads.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM, StoppingCriteria, StoppingCriteriaList

from asyncrl.inference.local_engine.compute import ComputeWeights
from asyncrl.inference.local_engine.engine import Engine, EngineSettings
from asyncrl.inference.local_engine.model_config import ModelConfig
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling_params import SamplingParams

TEMPERATURE, ROWS, LONGEST = 0.8, 32, 256
MODELS = {
    "4m": {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 512},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 176, "vocab_size": 50},
}
CASES = {
    "": ("4m", torch.float32),
    "_bf16": ("4m", torch.bfloat16),
    "_tiny": ("tiny", torch.float32),
}

Work = list[tuple[list[int], int]]


def make_model(name: str, dtype: torch.dtype) -> Qwen2ForCausalLM:
    """Random weights, lively enough that every one of them matters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        **MODELS[name],
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.mul_(3)
    return model.to(dtype)


def make_work(count: int, vocab: int) -> Work:
    """Prompts of 16 to 64 tokens, outputs of 8 to 256, log-normal with median 35: a tail, as answers have."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(16, 65, count)
    outputs = np.clip(np.exp(rng.normal(3.6, 1.0, count)).astype(int), 8, LONGEST)
    return [(rng.integers(0, vocab, n).tolist(), int(length)) for n, length in zip(prompts, outputs, strict=True)]


class _EachRowsLength(StoppingCriteria):
    def __init__(self, prompt: int, lengths: list[int]) -> None:
        self.prompt, self.lengths = prompt, torch.tensor(lengths)

    def __call__(self, ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        return (ids.shape[1] - self.prompt) >= self.lengths


@torch.inference_mode()
def generate(model: Qwen2ForCausalLM, work: Work) -> None:
    """transformers' generate in static batches of ROWS, left-padded, with logprobs of the sampled tokens."""
    for start in range(0, len(work), ROWS):
        batch = work[start : start + ROWS]
        longest = max(len(prompt) for prompt, _ in batch)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in batch])
        lengths = [length for _, length in batch]
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(lengths),
            pad_token_id=0,
            eos_token_id=None,
            stopping_criteria=StoppingCriteriaList([_EachRowsLength(longest, lengths)]),
            return_dict_in_generate=True,
            output_scores=True,
        )
        model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)


def make_engine(model: nn.Module, dtype: torch.dtype) -> Engine:
    """An engine over the same weights, with rows for one static batch."""
    local = LocalModel(ModelConfig.from_dict(model.config.to_dict()), dtype)
    local.load_weights(model.state_dict().items())
    return Engine(local, ComputeWeights(local.weights, dtype), EngineSettings(max_running=ROWS, context_length=320))


def run_engine(engine: Engine, work: Work) -> None:
    """All requests through the engine, no prompt known from before."""
    engine.prefixes.clear()
    params = [
        SamplingParams(max_new_tokens=n, temperature=TEMPERATURE, sampling_seed=i) for i, (_, n) in enumerate(work)
    ]
    engine.run([Request(str(i), prompt, params[i]) for i, (prompt, _) in enumerate(work)])


def seconds(call: Callable[[], None]) -> float:
    """CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main(arguments: Sequence[str] = ()) -> dict[str, float]:
    """Runs all cases interleaved and returns ratios and tokens per second."""
    parser = argparse.ArgumentParser(prog="scripts/bench engine", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["4m", "tiny"], help="leave the other model out")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calls: dict[str, tuple[int, Callable[[], None], Callable[[], None]]] = {}
    for suffix, (name, dtype) in CASES.items():
        if args.only in (None, name):
            model = make_model(name, dtype)
            engine = make_engine(model, dtype)
            for kind, count in (("32", 32), ("steady", 128)):
                work = make_work(count, model.config.vocab_size)
                calls[kind + suffix] = (
                    sum(length for _, length in work),
                    lambda model=model, work=work: generate(model, work),
                    lambda engine=engine, work=work: run_engine(engine, work),
                )
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in calls}
    for round_number in range(args.rounds + 1):
        for key, (_, theirs, ours) in calls.items():
            pair = (seconds(theirs), seconds(ours))
            if round_number:  # the first warms up
                times[key].append(pair)
    figures: dict[str, float] = {}
    for key, (tokens, _, _) in calls.items():
        ratios = [theirs / ours for theirs, ours in times[key]]
        figures[f"vs_generate_{key}"] = round(statistics.median(ratios), 2)
        figures[f"vs_generate_{key}_low"] = round(min(ratios), 2)
        figures[f"vs_generate_{key}_high"] = round(max(ratios), 2)
        figures[f"engine_tokens_per_s_{key}"] = round(tokens / statistics.median(ours for _, ours in times[key]))
        figures[f"generate_tokens_per_s_{key}"] = round(tokens / statistics.median(theirs for theirs, _ in times[key]))
        print(
            f"{key:12s} engine {figures[f'engine_tokens_per_s_{key}']:7.0f} tok/s, generate "
            f"{figures[f'generate_tokens_per_s_{key}']:7.0f} tok/s: {figures[f'vs_generate_{key}']:.2f} x "
            f"({figures[f'vs_generate_{key}_low']:.2f} to {figures[f'vs_generate_{key}_high']:.2f})"
        )
    return figures
