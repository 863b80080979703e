"""Calls the preference losses with the names and shapes of the golden cases."""

from collections.abc import Mapping
from typing import Any  # a case's inputs and results are whatever its JSON holds

from asyncrl.algorithms.masking import row_lengths
from asyncrl.algorithms.preference import log_ratios, pair_loss, win_probability_loss
from tests.unit.asyncrl.algorithms.golden import Adapter

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def _pair(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    chosen, rejected = (inputs[name].clone().requires_grad_() for name in ("chosen_logp", "rejected_logp"))
    pairs = pair_loss(
        chosen,
        rejected,
        inputs["ref_chosen_logp"],
        inputs["ref_rejected_logp"],
        kind=params["kind"],
        beta=params["beta"],
        label_smoothing=params.get("label_smoothing") or 0.0,
    )
    pairs.losses_P.sum().backward()
    return {
        "losses": pairs.losses_P,
        "chosen_rewards": pairs.chosen_rewards_P,
        "rejected_rewards": pairs.rejected_rewards_P,
        "grad_chosen": chosen.grad,
        "grad_rejected": rejected.grad,
    }


def _sppo(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    logp, mask = inputs["logp"].clone().requires_grad_(), inputs["mask"] > 0
    ratios = log_ratios(logp, inputs["old_logp"], mask)
    losses = win_probability_loss(ratios, inputs["win_prob"], eta=params["eta"], center=params["center"])
    has_tokens = row_lengths(mask) > 0
    loss = losses[has_tokens].sum() / has_tokens.sum().clamp(min=1)
    loss.backward()
    return {"loss": loss, "log_ratio": ratios, "grad_logp": logp.grad}


PREFERENCE: Mapping[str, Adapter] = {"pref.pair": _pair, "pref.sppo": _sppo}
