"""How episodes of tests are sampled and bounded, unless a test says otherwise."""

from dataclasses import replace
from typing import Any

from asyncrl.rollout.episode import EpisodeSettings

_SETTINGS = EpisodeSettings(
    run_seed=0,
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    max_new_tokens=8,
    max_turns=1,
    max_attempts=2,
    context_length=64,
    max_prompt_tokens=60,
    truncation="error",
)


def episode_settings(**changes: Any) -> EpisodeSettings:
    """The settings with some of them changed."""
    return replace(_SETTINGS, **changes)
