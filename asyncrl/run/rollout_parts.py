"""Make what plays episodes, for a worker of the run and for `asyncrl eval` alike."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from asyncrl.config import Config, TeacherConfig
from asyncrl.config.greedy_baseline import plays_greedy_baseline
from asyncrl.data.values import Json
from asyncrl.envs import EnvironmentDeps
from asyncrl.envs.lookup import find_environment
from asyncrl.envs.resources import Resources
from asyncrl.envs.rewards.limits import Share
from asyncrl.envs.rewards.pool import RewardPool
from asyncrl.envs.tools.catalogue import shared_tools
from asyncrl.envs.tools.parsers import TurnParser
from asyncrl.inference.board import Board
from asyncrl.inference.clients import make_client
from asyncrl.inference.experts import ExpertCounts
from asyncrl.inference.fleet import Fleet, FleetLimits
from asyncrl.inference.protocol import vocab_size
from asyncrl.inference.scoring import ScoringClient
from asyncrl.rollout.chat import ChatTemplate
from asyncrl.rollout.episode import EpisodePlayer, EpisodeSettings
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.reservation import Prompts
from asyncrl.rollout.teacher import Teacher
from asyncrl.rollout.teachers import Teachers
from asyncrl.rollout.turns import Drawing
from asyncrl.run.identity import check_rewards, open_prompts, prompt_order
from asyncrl.run.tool_checks import check_tools


@dataclass(frozen=True)
class RolloutParts:
    """What plays episodes: the player with its fleet and rewards, and which prompt an ordinal stands for. `share`: the
    part that these rewards have of limits per minute."""

    chat: ChatTemplate
    fleet: Fleet
    sampling: EpisodeSettings
    player: EpisodePlayer
    rewards: RewardPool
    share: Share
    resources: Resources
    teachers: Teachers
    train: Prompts
    held_out: Prompts | None


async def load_parts(config: Config, board: Board, model_dir: Path) -> RolloutParts:
    """Make them, with the tools of rollout.tools loaded first: prompts are as long as the tools that they show.

    Raises:
        ConfigError, DataError, RewardError, PreflightError: something cannot be used.
    """
    resources, shown = Resources(), tuple[Mapping[str, Json], ...]()
    try:
        if getattr(find_environment(config.rollout.environment), "takes_tools", False):
            catalogue = await shared_tools(resources, config.rollout.tools)
            shown = tuple(tool.schema for tool in catalogue.tools.values())
        return make_parts(config, board, model_dir, resources=resources, shown=shown)
    except BaseException:
        await resources.close()
        raise


def make_parts(
    config: Config,
    board: Board,
    model_dir: Path,
    *,
    batches: bool = True,
    resources: Resources | None = None,
    shown: Sequence[Mapping[str, Json]] = (),
) -> RolloutParts:
    """Make them.

    Args:
        batches: short questions share requests, which costs less and lets answers wait for each other.
        resources: what the episodes share. None: new ones.
        shown: schemas of the tools that prompts show which have none of their own.
    Raises:
        ConfigError, DataError, RewardError: something cannot be used.
    """
    rollout = config.rollout
    make_environment = find_environment(rollout.environment)
    chat = ChatTemplate.from_model_dir(model_dir)
    check_tools(rollout, make_environment, chat)
    vocabulary = vocab_size(model_dir)
    train, held_out = open_prompts(config, chat, shown)
    if not getattr(make_environment, "scores_itself", False):
        check_rewards(config, train, held_out)
    limits = FleetLimits(
        request_timeout_s=config.inference.request_timeout_s,
        max_version_skew=config.weightsync.max_version_skew,
        rows=max(1, config.inference.max_running_requests // max(1, rollout.workers)),
        caches_outlive_updates=config.weightsync.kv == "keep",
        turn=os.getpid(),
    )
    experts = ExpertCounts.of(model_dir) if config.inference.record_experts else None
    engine = config.inference.engine
    fleet = Fleet(
        board,
        lambda url: make_client(engine, url, vocab_size=vocabulary, experts=experts, batches=batches),
        limits,
    )
    share = Share(max(1, rollout.workers))
    rewards = RewardPool.of(rollout.reward, share=share)
    read_turn = TurnParser(rollout.tools.parser, chat.source, in_thought=chat.opens_thought)
    deps = EnvironmentDeps(rewards=rewards, config=rollout, resources=resources or Resources(), read_turn=read_turn)
    settings = EpisodeSettings(
        run_seed=config.run.seed,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_new_tokens=rollout.max_new_tokens,
        max_turns=rollout.max_turns,
        max_attempts=rollout.max_episode_attempts,
        context_length=config.inference.context_length,
        max_prompt_tokens=config.data.max_prompt_tokens,
        truncation=config.data.truncation,
        chunk_tokens=rollout.partials.chunk_tokens,
        held_out=held_out_drawing(config),
    )
    player = EpisodePlayer(chat, fleet, lambda: make_environment(deps), settings, deps.counts)
    return RolloutParts(
        chat=chat,
        fleet=fleet,
        sampling=settings,
        player=player,
        rewards=rewards,
        share=share,
        resources=deps.resources,
        teachers=Teachers([_teacher(teacher, vocabulary, player.counts) for teacher in config.teachers]),
        train=Prompts(
            train,
            prompt_order(config, train),
            rollout.n,
            with_baseline=plays_greedy_baseline(config.algorithm),
            curriculum=None if config.data.curriculum.policy == "none" else config.data.curriculum,
        ),
        held_out=None
        if held_out is None
        else Prompts(held_out, PromptOrder(len(held_out), config.run.seed, shuffle=False), config.eval.n),
    )


def held_out_drawing(config: Config) -> Drawing:
    """How held-out prompts are sampled."""
    own, rollout = config.eval, config.rollout
    return Drawing(
        temperature=rollout.temperature if own.temperature is None else own.temperature,
        top_p=rollout.top_p if own.top_p is None else own.top_p,
        top_k=rollout.top_k if own.top_k is None else own.top_k,
    )


def _teacher(teacher: TeacherConfig, vocabulary: int, counts: Counter[str]) -> Teacher:
    clients = [ScoringClient(url, vocab_size=vocabulary) for url in teacher.urls]
    return Teacher(teacher, clients, vocabulary, counts)
