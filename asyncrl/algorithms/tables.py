"""The losses and corrections that a configuration can name, each with its vetted settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from asyncrl.algorithms.base import CorrectionRule, Selection, TokenLoss
from asyncrl.algorithms.corrections import Weighting, correct
from asyncrl.algorithms.covariance import clip_cov, clip_cov_selected, kl_cov, kl_cov_selected
from asyncrl.algorithms.losses import cispo, dppo_kl, dppo_tv, dro, ppo_clip, reinforce, sapo, surrogate
from asyncrl.algorithms.rejection import Rule
from asyncrl.algorithms.sequence_losses import gmpo, gspo


@dataclass(frozen=True)
class LossChoice:
    """A policy loss by name."""

    loss: partial[TokenLoss]
    aggregation: str = "token-mean"
    """The mode that comes with the loss when a configuration names the loss and no mode."""
    aggregation_fixed: bool = False
    """True: any other mode would make it another algorithm, and is refused."""
    follows_lag: bool = False
    """Whether its clip range can depend on the age of the tokens (the setting lag_scale)."""
    has_ratio: bool = True
    """Whether the ratio to the proximal policy is in it: in bypass mode that ratio is the importance weight."""
    selection: Selection | None = None
    """The rule whose tokens the loss takes as `selected_BT`."""


_CLIP_COV = partial(clip_cov_selected, share=2e-4, lower=1.0, upper=5.0, low=0.2, high=0.2)
_KL_COV = partial(kl_cov_selected, share=2e-4)


LOSSES: Mapping[str, LossChoice] = MappingProxyType(
    {
        "ppo_clip": LossChoice(partial(ppo_clip, low=0.2, high=0.2, dual_clip=3.0), follows_lag=True),
        "gspo": LossChoice(partial(gspo, low=3e-4, high=4e-4), "seq-mean-token-mean"),
        "cispo": LossChoice(partial(cispo, low=1.0, high=0.2)),
        "reinforce": LossChoice(partial(reinforce), has_ratio=False),
        "gmpo": LossChoice(partial(gmpo, low=0.4, high=0.4), "seq-mean-token-sum", aggregation_fixed=True),
        "sapo": LossChoice(partial(sapo, tau_positive=1.0, tau_negative=1.05), "seq-mean-token-mean"),
        "dppo_tv": LossChoice(partial(dppo_tv, low=0.2, high=0.2, ratio_cap=20.0)),
        "dppo_kl": LossChoice(partial(dppo_kl, low=0.2, high=0.2, ratio_cap=20.0)),
        "surrogate": LossChoice(partial(surrogate)),
        "clip_cov": LossChoice(partial(clip_cov, low=0.2, high=0.2), selection=Selection(_CLIP_COV, rejects=False)),
        "kl_cov": LossChoice(partial(kl_cov, penalty=0.1), selection=Selection(_KL_COV, rejects=False)),
        "dro": LossChoice(partial(dro, beta=0.1), has_ratio=False),
    }
)

TIS = Weighting("token", "truncate", upper=2.0)
TIS_SEQUENCE = Weighting("sequence", "truncate", upper=2.0)
ICEPOP = Weighting("token", "mask", lower=0.5, upper=5.0)

CORRECTIONS: Mapping[str, CorrectionRule | None] = MappingProxyType(
    {
        "none": None,
        "tis": partial(correct, weighting=TIS),
        "tis_sequence": partial(correct, weighting=TIS_SEQUENCE),
        "icepop": partial(correct, weighting=ICEPOP),
        # Rejection of whole rows, weights 1: by the product of the ratios, and by their geometric mean.
        "mask_sequence": partial(correct, weighting=None, rules=(Rule("seq_sum", "k1", bounds=(0.5, 2.0)),)),
        "mask_geometric": partial(correct, weighting=None, rules=(Rule("seq_mean", "k1", bounds=(0.999, 1.001)),)),
    }
)
