"""A critic beside the tiny policy, and a learner of both."""

from pathlib import Path

from asyncrl.algorithms import resolve
from asyncrl.config import ActorConfig, AlgorithmConfig, CriticConfig
from asyncrl.trainer.critic import Critic
from asyncrl.trainer.learner import Learner
from asyncrl.trainer.models import Arithmetic
from asyncrl.trainer.parallel import OneRank, Ranks
from tests.support.tiny_policy import make_policy


def make_critic(
    model_dir: Path,
    ranks: Ranks | None = None,
    *,
    arithmetic: Arithmetic = "float32",
    epochs: int = 1,
    steps: int = 10,
    **settings: object,
) -> Critic:
    """A critic of that model's trunk; `settings` go to its section."""
    actor = ActorConfig(ppo_epochs=epochs)
    return Critic.load(
        model_dir,
        resolve(AlgorithmConfig(name="ppo_gae"), actor),
        CriticConfig(**{"lr": 3e-3, **settings}),  # type: ignore[arg-type]  # by name
        actor,
        arithmetic=arithmetic,
        steps=steps,
        ranks=ranks or OneRank(),
    )


def make_learner(model_dir: Path, **settings: object) -> Learner:
    """PPO with a critic; `settings` go to the critic's section."""
    return Learner(make_policy(model_dir, algorithm_name="ppo_gae"), make_critic(model_dir, **settings))
