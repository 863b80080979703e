"""The algorithms: a table of vetted rows, and `resolve`, which applies a configuration to one of them."""

from collections.abc import Mapping
from types import MappingProxyType

from asyncrl.algorithms import (
    cispo,
    clip_cov,
    dapo,
    decoupled_ppo,
    dppo_kl,
    dppo_tv,
    dr_grpo,
    dro,
    gdpo,
    gmpo,
    gpg,
    grpo,
    grpo_passk,
    gspo,
    icepop,
    kl_cov,
    lite_ppo,
    m2po,
    online_dpo,
    opd,
    opo,
    otb,
    overrides,
    ppo_gae,
    reinforce_pp,
    reinforce_pp_baseline,
    remax,
    rloo,
    sapo,
    spin,
    sppo,
)
from asyncrl.algorithms.base import Algorithm
from asyncrl.algorithms.sections import ActorSection, AlgorithmSection

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "grpo": grpo.ALGORITHM,
        "dr_grpo": dr_grpo.ALGORITHM,
        "dapo": dapo.ALGORITHM,
        "rloo": rloo.ALGORITHM,
        "gspo": gspo.ALGORITHM,
        "cispo": cispo.ALGORITHM,
        "reinforce_pp": reinforce_pp.ALGORITHM,
        "reinforce_pp_baseline": reinforce_pp_baseline.ALGORITHM,
        "opo": opo.ALGORITHM,
        "gpg": gpg.ALGORITHM,
        "gmpo": gmpo.ALGORITHM,
        "sapo": sapo.ALGORITHM,
        "dppo_tv": dppo_tv.ALGORITHM,
        "dppo_kl": dppo_kl.ALGORITHM,
        "grpo_passk": grpo_passk.ALGORITHM,
        "ppo_gae": ppo_gae.ALGORITHM,
        "remax": remax.ALGORITHM,
        "gdpo": gdpo.ALGORITHM,
        "otb": otb.ALGORITHM,
        "lite_ppo": lite_ppo.ALGORITHM,
        "clip_cov": clip_cov.ALGORITHM,
        "kl_cov": kl_cov.ALGORITHM,
        "dro": dro.ALGORITHM,
        "m2po": m2po.ALGORITHM,
        "decoupled_ppo": decoupled_ppo.ALGORITHM,
        "icepop": icepop.ALGORITHM,
        "opd": opd.ALGORITHM,
        "online_dpo": online_dpo.ALGORITHM,
        "spin": spin.ALGORITHM,
        "sppo": sppo.ALGORITHM,
    }
)


def resolve(algorithm: AlgorithmSection, actor: ActorSection, *, max_new_tokens: int | None = None) -> Algorithm:
    """The algorithm that a configuration describes: the named row with every key that is set in place of its own.

    Args:
        algorithm: the section `algorithm`.
        actor: the section `actor`, of which the clip range is read.
        max_new_tokens: rollout.max_new_tokens, the divisor of seq-mean-token-sum-norm unless norm_length is set.
    Raises:
        ConfigError: a name that is not known, or keys that contradict each other or have no effect together.
    """
    return overrides.apply(ALGORITHMS, algorithm, actor, max_new_tokens)


__all__ = ["ALGORITHMS", "Algorithm", "resolve"]
