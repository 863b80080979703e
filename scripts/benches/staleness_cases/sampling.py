"""Groups from the local engine, in this process: the same engine, seeds, chat template and rewards as a real run."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from asyncrl.config import Config
from asyncrl.envs.rewards import compute_score
from asyncrl.inference.local_engine.compute import ComputeWeights, resolve_dtype
from asyncrl.inference.local_engine.engine import Engine, EngineSettings
from asyncrl.inference.local_engine.models import LocalModel
from asyncrl.inference.local_engine.request import Request
from asyncrl.inference.local_engine.sampling_params import SamplingParams
from asyncrl.inference.local_engine.text import TextCodec
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.seeds import Stream, sampling_seed
from asyncrl.starter.problem import Problem
from buffer import Group, Span, Trajectory
from buffer.versions import parse_label

Weights = Mapping[str, Tensor]
"""Tensors by their names in a checkpoint, in the dtype that servers hold."""


class Sampler:
    """One engine whose weights are put in place by hand."""

    def __init__(self, config: Config) -> None:
        path: Path = config.model.path
        self._config = config
        self._model = LocalModel.from_dir(path, getattr(torch, config.model.wire_dtype))
        self._compute = ComputeWeights(self._model.weights, resolve_dtype("auto", self._model.weights))
        self._codec = TextCodec.from_dir(path)
        self._chat = ChatTemplate.from_model_dir(path)
        settings = EngineSettings(
            max_running=config.inference.max_running_requests, context_length=config.inference.context_length
        )
        self._engine = Engine(self._model, self._compute, settings, self._codec)

    def load(self, weights: Weights, version: int) -> None:
        """Sample with these weights from here on, under this number of the root branch."""
        self._model.load_weights(weights.items())
        self._compute.touch()
        self._engine.prefixes.clear()
        self._engine.set_version(f"0.{version}")

    def groups(self, problems: Sequence[Problem], first_ordinal: int, size: int, stream: Stream) -> list[Group]:
        """One group of `size` answers a problem, scored."""
        prompts = [self._chat.render([{"role": "user", "content": problem.prompt}]) for problem in problems]
        requests = [
            Request(f"{ordinal}.{episode}", list(prompt), self._params(stream, ordinal, episode))
            for ordinal, prompt in enumerate(prompts, first_ordinal)
            for episode in range(size)
        ]
        answers = iter(self._engine.run(requests))
        source = self._config.starter.task.name if self._config.starter else ""
        return [
            Group(
                ordinal=ordinal,
                attempt=1,
                data_source=source,
                trajectories=tuple(self._trajectory(next(answers), source, problem) for _ in range(size)),
            )
            for ordinal, problem in enumerate(problems, first_ordinal)
        ]

    def _params(self, stream: Stream, ordinal: int, episode: int) -> SamplingParams:
        rollout = self._config.rollout
        return SamplingParams(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            stop_token_ids=frozenset(self._chat.eos_ids),
            sampling_seed=sampling_seed(self._config.run.seed, stream, ordinal, episode),
        )

    def _trajectory(self, answer: Request, source: str, problem: Problem) -> Trajectory:
        builder = TrajectoryBuilder()
        builder.begin_row(answer.prompt)
        spans = [Span(parse_label(span.version), 0, span.end - span.start) for span in answer.spans(len(answer.output))]
        builder.append_sampled(answer.output, answer.logprobs, spans)
        assert answer.finish is not None
        reason = str(answer.finish["type"])
        said = answer.output[:-1] if reason == "stop" else answer.output
        reward = compute_score(source, self._codec.decode(said), problem.answer)
        return builder.finish(reward, finish_reason=reason, num_turns=1, extra_info={})


def endless(problems: Sequence[Problem], seed: int) -> Iterator[Problem]:
    """The problems in an order made from the seed, epoch after epoch."""
    for epoch in itertools.count():
        generator = torch.Generator().manual_seed(seed * 1000 + epoch)
        for index in torch.randperm(len(problems), generator=generator).tolist():
            yield problems[index]
