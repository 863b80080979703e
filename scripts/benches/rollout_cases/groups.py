"""The local engine against transformers' generate on groups: eight answers to each prompt, as GRPO asks for them.

The same model, requests and rules as `scripts/bench engine`, where every prompt is another one; here the engine reads
a group's prompt once. generate has no such way: it reads every row, with the group's rows beside each other.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from asyncrl.inference.local_engine.compute import ComputeWeights
from asyncrl.inference.local_engine.engine import Engine
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling_params import SamplingParams
from scripts.benches.engine import ROWS, Work, generate, make_engine, make_model, make_work, run_engine, seconds

Figures = dict[str, float]
GROUP = 8
CACHED = 100
"""Tokens that each row has behind it where a step is compared with its products."""


def grouped(work: Work) -> Work:
    """The same lengths of answers, each group of eight after one prompt."""
    return [(work[i - i % GROUP][0], length) for i, (_, length) in enumerate(work)]


def measure(rounds: int) -> Figures:
    """Interleaved rounds on the 4 M model in float32, one thread; CPU seconds.

    Returns:
        `vs_generate_32`: 4 groups of 8 at once; `vs_generate_steady`: 16 groups, 32 rows at a time (generate: four
        static batches); each the median over rounds of that round's ratio, with its extremes. `of_matmul_bound_32`:
        share of a step of 32 rows that its bare matrix products would take. `kind_<kind>`: how the weights lie.
    """
    torch.set_num_threads(1)
    model = make_model("4m", torch.float32)
    engine = make_engine(model, torch.float32)
    work = {kind: grouped(make_work(count, model.config.vocab_size)) for kind, count in (("32", ROWS), ("steady", 128))}
    calls: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        kind: (lambda one=one: generate(model, one), lambda one=one: run_engine(engine, one))
        for kind, one in work.items()
    }
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in calls}
    for number in range(rounds + 1):
        for kind, (theirs, ours) in calls.items():
            pair = (seconds(theirs), seconds(ours))
            if number:  # the first warms up
                times[kind].append(pair)
    kind = engine.compute.kind
    figures: Figures = {"of_matmul_bound_32": round(matmul_share(engine), 3), f"kind_{kind}": 1.0}
    for kind, pairs in times.items():
        ratios = [theirs / ours for theirs, ours in pairs]
        tokens = sum(length for _, length in work[kind])
        figures[f"vs_generate_{kind}"] = round(statistics.median(ratios), 2)
        figures[f"vs_generate_{kind}_low"], figures[f"vs_generate_{kind}_high"] = (
            round(min(ratios), 2),
            round(max(ratios), 2),
        )
        figures[f"engine_tokens_per_s_{kind}"] = round(tokens / statistics.median(ours for _, ours in pairs))
        figures[f"generate_tokens_per_s_{kind}"] = round(tokens / statistics.median(theirs for theirs, _ in pairs))
    return figures


def matmul_share(engine: Engine, steps: int = 150) -> float:
    """CPU seconds of the bare products of a step by those of the step, at 32 rows behind CACHED tokens each."""
    prompts = np.random.default_rng(1).integers(0, engine.model.config.vocab, (ROWS, CACHED)).tolist()
    params = SamplingParams(max_new_tokens=steps + 50, temperature=0.8, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add(Request(f"share-{i}", prompt, params))
    while engine.rows.num < ROWS:
        engine.tick()
    step_s: list[float] = []
    bare_s: list[float] = []
    for _ in range(steps):
        step_s.append(_cpu_s(engine.tick))
        bare_s.append(_cpu_s(lambda: bare_products(engine.compute)))
    engine.abort(lambda request: request.rid.startswith("share-"))
    while not engine.idle:
        engine.tick()
    return statistics.median(bare_s) / statistics.median(step_s)


@torch.inference_mode()
def bare_products(compute: ComputeWeights) -> None:
    """Every matrix product of one decode step of 32 rows, and nothing else."""
    config, linear = compute.weights.config, compute.linear
    rows = {
        size: torch.ones(ROWS, size, dtype=compute.dtype)
        for size in (config.hidden, config.q_size, config.intermediate)
    }
    for layer in compute.layers:
        linear(rows[config.hidden], layer.qkv, layer.qkv_bias)
        linear(rows[config.q_size], layer.o, layer.o_bias)
        linear(rows[config.hidden], layer.gate_up, layer.gate_up_bias)
        linear(rows[config.intermediate], layer.down, layer.down_bias)
    linear(rows[config.hidden], compute.head, None)


def _cpu_s(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start
