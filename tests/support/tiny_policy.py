"""A tiny model directory, and groups of trajectories whose logprobs some weights would have recorded."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from asyncrl.algorithms import resolve
from asyncrl.config import ActorConfig, AlgorithmConfig, LoraConfig
from asyncrl.config.trainer import StarterModelConfig
from asyncrl.starter.model import build_model, build_tokenizer, save
from asyncrl.trainer.batch import Batch, build
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.parallel import OneRank, Ranks, mini_batches
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.start import StartOfStep
from asyncrl.trainer.tally import Tally
from buffer import Group, Row, Span, Trajectory
from buffer.versions import pack

VOCABULARY = 50
SMALL = StarterModelConfig(hidden_size=16, layers=2, heads=2, kv_heads=1)
LOADING = threading.Lock()
"""transformers loads a model on a device that is switched for the whole process: one thread at a time."""


def write_tiny_model(directory: Path, seed: int = 0, wire_dtype: str = "bfloat16") -> Path:
    """A two-layer Llama with random weights and the starter's tokenizer; returns `directory`."""
    tokenizer = build_tokenizer()
    model = build_model(SMALL, tokenizer, seed)
    with torch.no_grad():  # larger than at its birth, so that logprobs differ visibly between tokens
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    save(model, tokenizer, directory, wire_dtype)
    return directory


def make_groups(
    model_dir: Path,
    num_groups: int,
    group_size: int,
    *,
    seed: int = 0,
    rewards: Sequence[Sequence[float | None]] | None = None,
    version: int = pack(1, 0),
    digest: int = 0,
    noise: float = 0.1,
    first_ordinal: int = 0,
) -> list[Group]:
    """Random prompts and answers of several lengths, with the model's own logprobs plus `noise`."""
    rng = np.random.default_rng(seed)
    with LOADING:
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    groups = []
    for index in range(num_groups):
        prompt = rng.integers(2, VOCABULARY, size=int(rng.integers(2, 6)))
        members = []
        for member in range(group_size):
            answer = rng.integers(1, VOCABULARY, size=int(rng.integers(1, 7)))
            reward = float(rng.integers(0, 2)) if rewards is None else rewards[index][member]
            row = make_row(model, prompt, answer, rng, version=version, digest=digest, noise=noise)
            members.append(
                Trajectory(rows=(row,), reward=reward, reward_error=None if reward is not None else "it failed")
            )
        groups.append(Group(ordinal=first_ordinal + index, attempt=1, data_source="toy", trajectories=tuple(members)))
    return groups


def make_row(
    model: torch.nn.Module,
    prompt: np.ndarray,
    answer: np.ndarray,
    rng: np.random.Generator,
    *,
    version: int,
    digest: int,
    noise: float,
) -> Row:
    """One prompt and its answer as a row."""
    ids = np.concatenate([prompt, answer]).astype(np.uint32)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
    picked = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.from_numpy(answer)[:, None])[:, 0].numpy()
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    logprobs[mask] = picked + noise * rng.standard_normal(len(answer)).astype(np.float32)
    return Row(
        token_ids=ids,
        mask=mask,
        logprobs=logprobs,
        spans=(Span(version, digest, len(answer)),),
        num_prompt_tokens=len(prompt),
    )


def make_policy(
    model_dir: Path,
    ranks: Ranks | None = None,
    *,
    steps: int = 10,
    offload_reference: bool = False,
    arithmetic: Arithmetic = "float32",
    lora_seed: int = 0,
    **settings: object,
) -> Policy:
    """A policy that trains that model; `settings` with the prefix `algorithm_` go to the algorithm, those with `lora_`
    to the adapter, others to actor."""
    algorithm, lora = (_with_prefix(prefix, settings) for prefix in ("algorithm_", "lora_"))
    own = {k: v for k, v in settings.items() if not k.startswith(("algorithm_", "lora_"))}
    actor = ActorConfig(**{"lr": 1e-2, **own})  # type: ignore[arg-type]  # by name
    return Policy.load(
        model_dir,
        resolve(AlgorithmConfig(**algorithm), actor),  # type: ignore[arg-type]  # by name
        actor,
        arithmetic=arithmetic,
        temperature=1.0,
        steps=steps,
        wire_dtype="bfloat16",
        ranks=ranks or OneRank(),
        offload_reference=offload_reference,
        lora=LoraConfig(**lora),  # type: ignore[arg-type]  # by name
        seed=lora_seed,
    )


def _with_prefix(prefix: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}


def make_batch(policy: Policy, groups: Sequence[Group], num_mini_batches: int = 1, *, max_lag: int = 8) -> Batch:
    """Those groups as one step of one rank."""
    return build(
        groups,
        mini_batches([group.ordinal for group in groups], num_mini_batches),
        filter_zero_variance=policy.algorithm.filter_zero_variance,
        filter_overlong=policy.algorithm.filter_overlong,
        lag_of=lambda version: 0,
        max_lag=max_lag,
    )


def train(policy: Policy, batch: Batch) -> Tally:
    """One step of a learner that has nothing to remember."""
    return Learner(policy).step(batch)


def advantages_of(policy: Policy, batch: Batch) -> np.ndarray:
    """[N] what that step would train each token with."""
    rewards = torch.from_numpy(batch.trajectories.rewards_J)
    return Learner(policy).advantages(StartOfStep(batch, policy), rewards).numpy()


def gradient_of(policy, groups, passes):
    """Of all parameters, and the metrics, of one step through these passes; the step is not taken."""
    policy._passes = passes
    found = []

    def keep(tally, *, reports):
        found.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
        policy.optimizer.discard()

    step, policy.optimizer.step = policy.optimizer.step, keep
    try:
        tally = Learner(policy).step(make_batch(policy, groups))
    finally:
        policy.optimizer.step = step
    return found[0], tally.values()
