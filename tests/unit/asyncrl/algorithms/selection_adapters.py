"""Calls the losses whose tokens are selected over a whole mini-batch with the names of the golden cases."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch

from asyncrl.algorithms.aggregation import aggregate
from asyncrl.algorithms.base import SelectionRule, TokenLoss
from asyncrl.algorithms.covariance import clip_cov, clip_cov_selected, kl_cov, kl_cov_selected
from asyncrl.algorithms.measures import finish
from tests.unit.asyncrl.algorithms.golden import Adapter

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def _selecting(choose: Callable[[Mapping[str, Any]], tuple[SelectionRule, Callable[..., TokenLoss]]]) -> Adapter:
    def run(inputs: Inputs, params: Mapping[str, Any]) -> Results:
        rule, loss = choose(params)
        mask, old, advantages = inputs["mask"] > 0, inputs["old_logp"], inputs["advantages"]
        leaf = inputs["logp"].clone().requires_grad_()
        selected = torch.zeros_like(mask)
        selected[mask] = rule(
            leaf.detach()[mask], old[mask], old[mask], advantages[mask], generator=torch.Generator().manual_seed(0)
        )
        tokens = loss(leaf, old, advantages, mask, inputs.get("is_weights"), selected_BT=selected)
        denominators = {name: params[name] for name in ("global_tokens", "global_seqs", "norm_length", "dp_size")}
        value = aggregate(tokens.loss_BT, mask, params["agg"], **denominators)
        value.backward()
        return {"loss": value, "grad_logp": leaf.grad, "metrics": finish(tokens.metrics)}

    return run


def _clip_cov(params: Mapping[str, Any]) -> tuple[SelectionRule, Callable[..., TokenLoss]]:
    clip = {"low": params["clip_low"], "high": params["clip_high"]}
    bounds = {"share": params["clip_cov_ratio"], "lower": params["clip_cov_lb"], "upper": params["clip_cov_ub"]}
    return partial(clip_cov_selected, **bounds, **clip), partial(clip_cov, **clip)


def _kl_cov(params: Mapping[str, Any]) -> tuple[SelectionRule, Callable[..., TokenLoss]]:
    return partial(kl_cov_selected, share=params["kl_cov_ratio"]), partial(kl_cov, penalty=params["ppo_kl_coef"])


SELECTIONS: Mapping[str, Adapter] = {"loss.clip_cov": _selecting(_clip_cov), "loss.kl_cov": _selecting(_kl_cov)}
