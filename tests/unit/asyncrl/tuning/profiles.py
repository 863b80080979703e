"""Profiles for tests: constant unless said otherwise, so that what comes out can be worked out by hand."""

from asyncrl.tuning.profile import Answers, Profile, Setting, Speeds, Workload

FLAT = {1.0: 0.1, 1000.0: 0.1}
"""A server that is as fast with a thousand requests as with one: a tenth of a second for each token."""


def profile(
    *,
    setting: Setting | None = None,
    groups_per_step: int = 2,
    group_size: int = 1,
    lengths: dict[int, float] | None = None,
    environment_s: dict[float, float] | None = None,
    in_group_share: float = 1.0,
    turns: float = 1.0,
    token_s: dict[float, float] | None = None,
    **speeds: float,
) -> Profile:
    """Ten tokens an answer, a second for a step, and nothing else takes time."""
    return Profile(
        setting=setting or Setting(limit=0, slots=1000),
        workload=Workload(groups_per_step=groups_per_step, group_size=group_size, checkpoint_every=1000),
        answers=Answers(
            lengths=lengths or {10: 1.0},
            environment_s=environment_s or {},
            in_group_share=in_group_share,
            turns=turns,
        ),
        speeds=Speeds(**{"token_s": token_s or FLAT, "step_s": 1.0, "trained_token_s": 0.0, **speeds}),
    )
