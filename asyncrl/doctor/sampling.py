"""Check of how tokens are drawn: from the distribution whose logprobs are compared, or from a part of it."""

from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.doctor.finding import Finding


def check_sampling(config: Config) -> Iterator[Finding]:
    """Advice where rollout.top_p or rollout.top_k leave tokens out.

    Servers record logprobs of the whole distribution, as the trainer computes them, so that equal weights have a ratio
    of 1; but the tokens come from the narrowed one, in which each is more likely by 1 over the mass that was kept.
    """
    rollout = config.rollout
    narrow = {"rollout.top_p": (rollout.top_p, rollout.top_p < 1), "rollout.top_k": (rollout.top_k, rollout.top_k > 0)}
    set_keys = " and ".join(f"{key} = {value}" for key, (value, is_set) in narrow.items() if is_set)
    if not set_keys:
        yield Finding("sampling", True, "tokens are drawn from the whole distribution")
        return
    yield Finding(
        "sampling",
        True,
        f"{set_keys}: tokens are drawn from a part of the distribution, and their logprobs are those of the whole. "
        "Ratios to the sampler are 1 at equal weights, but no importance weight corrects for what was left out",
        "Train with rollout.top_p = 1 and rollout.top_k = -1, unless this bias is meant.",
    )
