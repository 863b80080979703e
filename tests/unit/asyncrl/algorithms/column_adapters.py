"""Calls the estimators that look at more than rewards, and the critic's loss, with the names of the golden cases."""

from collections.abc import Callable, Mapping
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import aggregate
from asyncrl.algorithms.components import decoupled_components
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.returns import above_greedy, discounted_returns, generalized_advantages, whitened_gae
from asyncrl.algorithms.token_baseline import optimal_token_baseline, optimal_token_baseline_multi_turn
from asyncrl.algorithms.value_loss import value_loss
from tests.unit.asyncrl.algorithms.golden import Adapter, group_ids

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def _gae(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    rewards, values, mask = inputs["rewards"], inputs["values"], inputs["mask"] > 0
    settings = {"gamma": params["gamma"], "lam": params["lam"]}
    plain, returns = generalized_advantages(rewards, values, mask, **settings)
    whitened = whitened_gae(rewards, mask, torch.zeros(len(mask)), values_BT=values, **settings)
    return {"advantages": whitened if params["whiten"] else plain, "returns": returns}


def _remax(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    rewards, mask = inputs["rewards"], inputs["mask"] > 0
    advantages = above_greedy(rewards, mask, torch.zeros(len(mask)), baselines_B=inputs["baselines"])
    return {"advantages": advantages, "returns": discounted_returns(rewards, mask, gamma=1.0)}


def _gdpo(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    components = inputs["reward_components"]
    advantages = decoupled_components(
        components.sum(dim=0),
        inputs["mask"] > 0,
        group_ids(inputs["group_ids"]),
        components_KB=components,
        weights=params["weights"],
        divide_by_std=params["norm_by_std"],
        eps=params["eps"],
        singleton=params["singleton"],
    )
    return {"advantages": advantages}


def _token_baseline(estimate: Callable[..., Tensor]) -> Adapter:
    def run(inputs: Inputs, params: Mapping[str, Any]) -> Results:
        rewards, mask = inputs["rewards"], inputs["mask"] > 0
        advantages = estimate(
            rewards,
            mask,
            group_ids(inputs["group_ids"]),
            logprobs_BT=inputs["old_logp"],
            sum_pi_squared_BT=inputs["sum_pi_sq"],
            weights_BT=inputs.get("is_weights"),
            handle_zero_tail=params["handle_zero_tail"],
            eps=params["eps"],
        )
        return {"advantages": advantages, "returns": discounted_returns(rewards, mask, gamma=1.0)}

    return run


def _value(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    values, mask = inputs["values"].clone().requires_grad_(), inputs["mask"] > 0
    tokens = value_loss(values, inputs["old_values"], inputs["returns"], mask, clip=params["clip"])
    denominators = {name: params[name] for name in ("global_tokens", "global_seqs", "norm_length", "dp_size")}
    loss = aggregate(tokens.loss_BT, mask, params["agg"], **denominators)
    loss.backward()
    return {"loss": loss, "clip_frac": finish(tokens.metrics)["clip_frac"], "grad_values": values.grad}


COLUMNS: Mapping[str, Adapter] = {
    "adv.gae": _gae,
    "adv.remax": _remax,
    "adv.gdpo": _gdpo,
    "adv.otb": _token_baseline(optimal_token_baseline),
    "adv.otb_multi_turn": _token_baseline(optimal_token_baseline_multi_turn),
    "loss.value": _value,
}
