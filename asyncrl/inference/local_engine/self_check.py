"""Whether results depend on batch mates on this machine: the property that --deterministic promises, tried at start."""

from __future__ import annotations

import random
from dataclasses import replace

from asyncrl.inference.local_engine.compute import ComputeWeights
from asyncrl.inference.local_engine.engine import Engine, EngineSettings
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling_params import SamplingParams

NUM_REQUESTS = 12
PARAMS = SamplingParams(ignore_eos=True)


def batch_mates_differ(model: LocalModel, compute: ComputeWeights) -> str | None:
    """Runs the same requests in one batch, in another order, and alone.

    Returns:
        None if tokens and logprobs are equal bit for bit, else what differs.
    """
    limit = min(model.config.max_positions, 160)
    rng = random.Random(0)
    requests = []
    for index in range(NUM_REQUESTS):
        prompt = [rng.randrange(model.config.vocab) for _ in range(rng.randint(1, limit // 2))]
        params = replace(PARAMS, max_new_tokens=rng.randint(1, min(24, limit // 2)), sampling_seed=index)
        requests.append((prompt, params))

    def run(order: list[int], max_running: int) -> dict[int, tuple[list[int], list[float]]]:
        engine = Engine(model, compute, EngineSettings(max_running=max_running, context_length=limit))
        batch = [Request(str(index), *requests[index]) for index in order]
        engine.run(batch)
        return {index: (one.output, one.logprobs) for index, one in zip(order, batch, strict=True)}

    together = run(list(range(NUM_REQUESTS)), NUM_REQUESTS)
    shuffled = rng.sample(range(NUM_REQUESTS), NUM_REQUESTS)
    for other, how in ((run(shuffled, 5), "in another order, five at a time"), (run([3], 1), "alone")):
        for index, result in other.items():
            if result != together[index]:
                return f"request {index} of {NUM_REQUESTS} gave other tokens or logprobs {how}"
    return None
