"""Calls our functions with the names and shapes of the golden cases."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch
from torch import Tensor

from asyncrl.algorithms import ALGORITHMS, advantages, losses, returns, sequence_losses
from asyncrl.algorithms.aggregation import Denominators, aggregate, count
from asyncrl.algorithms.base import Algorithm, TokenLoss
from asyncrl.algorithms.corrections import correct
from asyncrl.algorithms.kl import KLController, kl_estimate, kl_full
from asyncrl.algorithms.logprobs import entropy, sum_pi_squared, token_logprobs
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.objective import Objective, policy_objective
from asyncrl.algorithms.rewards import subtract_kl
from asyncrl.algorithms.whitening import whiten
from tests.support.staleness_cases import STALENESS
from tests.unit.asyncrl.algorithms.column_adapters import COLUMNS
from tests.unit.asyncrl.algorithms.distillation_adapters import DISTILLATION
from tests.unit.asyncrl.algorithms.golden import Adapter, group_ids
from tests.unit.asyncrl.algorithms.off_policy_adapters import OFF_POLICY, mask_of, numbers, rules, weighting
from tests.unit.asyncrl.algorithms.preference_adapters import PREFERENCE
from tests.unit.asyncrl.algorithms.reward_adapters import REWARDS
from tests.unit.asyncrl.algorithms.selection_adapters import SELECTIONS

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_()


def group_advantage(estimate: Callable[..., Tensor], *names: str) -> Adapter:
    """`names`: our keyword and the case's parameter, with = between."""

    def run(inputs: Inputs, params: Mapping[str, Any]) -> Results:
        settings = {ours: params[theirs] for ours, theirs in (name.split("=") for name in names)}
        ids = group_ids(inputs["group_ids"])
        return {"advantages": estimate(inputs["rewards"], mask_of(inputs), ids, **settings)}

    return run


def _sessions(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    """As the trainer does it: the rows of a session are joined to one, whose reward is that of its last output."""
    mask, outputs = mask_of(inputs), inputs["output_index"]
    keys = list(zip(inputs["group_ids"], inputs["session_ids"], strict=True))
    session_of = group_ids(["/".join(key) for key in keys])
    last = [
        max((i for i in range(len(keys)) if session_of[i] == s), key=lambda i: outputs[i])
        for s in range(int(session_of.max()) + 1)
    ]
    lengths = torch.zeros(len(last), dtype=torch.int64).index_add(0, session_of, mask.sum(dim=-1))
    joined = torch.arange(int(lengths.max())) < lengths[:, None]
    settings = {"divide_by_std": params["norm_by_std"], "eps": params["eps"], "singleton": params["singleton"]}
    scores, groups = inputs["rewards"].sum(dim=-1)[last], group_ids(inputs["group_ids"])[last]
    scalars = advantages.group_relative(scores, joined, groups, **settings)[:, 0]
    return {"advantages": scalars[session_of][:, None] * mask}


def _reinforce_pp(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    rewards, mask, gamma = inputs["rewards"], mask_of(inputs), params["gamma"]
    return {
        "advantages": returns.whitened_returns(rewards, mask, torch.zeros(len(rewards)), gamma=gamma),
        "returns": returns.discounted_returns(rewards, mask, gamma=gamma),
    }


def _whiten(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    return {"value": whiten(inputs["values"], mask_of(inputs), shift_mean=params["shift_mean"])}


def _aggregate(values: Tensor, mask: Tensor, params: Mapping[str, Any], mode: str) -> Tensor:
    return aggregate(
        values,
        mask,
        mode,
        global_tokens=params.get("global_tokens"),
        global_seqs=params.get("global_seqs"),
        norm_length=params.get("norm_length"),
        dp_size=params.get("dp_size", 1),
    )


def _agg_loss(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf = _leaf(inputs["loss"])
    value = _aggregate(leaf, mask_of(inputs), params, params["mode"])
    value.backward()
    return {"value": value, "grad": leaf.grad}


def _agg_split(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    mask = mask_of(inputs)
    micro_values = [
        torch.stack([_aggregate(inputs["loss"][rows], mask[rows], params, params["mode"]) for rows in ranks])
        for ranks in params["rows"]
    ]
    return {"micro_values": micro_values, "total": torch.stack([v.sum() for v in micro_values]).mean()}


def _kl_estimate(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf = _leaf(inputs["logp"])
    value = kl_estimate(leaf, inputs["ref_logp"], params["kind"])
    value.sum().backward()
    return {"value": value, "grad_logp": leaf.grad}


def _kl_full(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf = _leaf(inputs["logits"])
    value = kl_full(leaf, inputs["ref_logits"])
    value.sum().backward()
    return {"value": value, "grad_logits": leaf.grad}


def _controller(params: Mapping[str, Any]) -> KLController:
    if params["type"] == "fixed":
        return KLController(params["kl_coef"])
    return KLController(params["kl_coef"], target=params["target_kl"], horizon=params["horizon"])


def _kl_controller(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    controller, coefs = _controller(params), []
    for kl, num_rows in zip(inputs["kl"], inputs["n"], strict=True):
        controller = controller.updated(kl, num_rows)
        coefs.append(controller.coef)
    return {"coef_after": coefs}


def _kl_in_reward(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    controller = _controller(params)
    rewards, (total, rows) = subtract_kl(
        inputs["scores"],
        inputs["old_logp"],
        inputs["ref_logp"],
        mask_of(inputs),
        coef=controller.coef,
        kind=params["kind"],
    )
    kl = float(total / rows)
    after = controller.updated(kl, int(rows)).coef
    return {"rewards": rewards, "kl": kl, "coef_used": controller.coef, "coef_after": after}


def _loss(
    loss: Callable[..., TokenLoss], settings: Mapping[str, str] | None = None, *, mode: str | None = None
) -> Adapter:
    """`settings`: our keyword by the case's parameter. `mode`: the aggregation, where the case's has no meaning."""

    def run(inputs: Inputs, params: Mapping[str, Any]) -> Results:
        leaf, mask = _leaf(inputs["logp"]), mask_of(inputs)
        keywords = {ours: params[theirs] for theirs, ours in (settings or {}).items()}
        tokens = loss(leaf, inputs["old_logp"], inputs["advantages"], mask, inputs.get("is_weights"), **keywords)
        value = _aggregate(tokens.loss_BT, mask, params, mode or params["agg"])
        value.backward()
        return {"loss": value, "grad_logp": leaf.grad, "metrics": numbers(tokens.metrics)}

    return run


_CLIP = {"clip_low": "low", "clip_high": "high"}


def _denominators(mask: Tensor, params: Mapping[str, Any]) -> Denominators:
    tokens, rows = count(mask)
    given = (params.get("global_tokens"), params.get("global_seqs"))
    return Denominators(given[0] or tokens, given[1] or rows, params.get("dp_size", 1))


def _algorithm(params: Mapping[str, Any], **changes: Any) -> Algorithm:
    clip = partial(losses.ppo_clip, low=params["clip_low"], high=params["clip_high"], dual_clip=params["dual_clip_c"])
    settings = {"loss": clip, "aggregation": params["agg"], "norm_length": params["norm_length"], "correction": None}
    return replace(ALGORITHMS["grpo"], **(settings | changes))


def _corrected(inputs: Inputs, leaf: Tensor, objective: Objective) -> Results:
    objective.loss.backward()
    found = objective.correction
    extra = {} if found is None else {"weights": found.weights_BT, "mask": found.keep_BT.float()}
    return {"loss": objective.loss, "grad_logp": leaf.grad} | extra


def _decoupled(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf, mask = _leaf(inputs["logp"]), mask_of(inputs)
    correction = partial(correct, weighting=weighting(params["is"]), rules=rules(params["rules"]))
    objective = policy_objective(
        _algorithm(params, correction=correction),
        leaf,
        inputs["behaviour_logp"],
        inputs["advantages"],
        mask,
        _denominators(mask, params),
        proximal_BT=inputs["proximal_logp"],
    )
    return _corrected(inputs, leaf, objective)


def _bypass(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf, mask = _leaf(inputs["logp"]), mask_of(inputs)
    correction = partial(correct, weighting=weighting(params["is"]), rules=rules(params["rules"]))
    changes: dict[str, Any] = {"bypass": True, "correction": correction}
    if params["loss"] == "reinforce":
        changes["loss"] = losses.reinforce
    objective = policy_objective(
        _algorithm(params, **changes),
        leaf,
        inputs["behaviour_logp"],
        inputs["advantages"],
        mask,
        _denominators(mask, params),
    )
    return _corrected(inputs, leaf, objective)


def _total(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf, entropies, mask = _leaf(inputs["logp"]), _leaf(inputs["entropy"]), mask_of(inputs)
    coefs = {"entropy_coef": params["entropy_coef"], "kl_coef": params["kl_coef"], "kl_estimator": params["kl_kind"]}
    objective = policy_objective(
        _algorithm(params, **coefs),
        leaf,
        inputs["old_logp"],
        inputs["advantages"],
        mask,
        _denominators(mask, params),
        proximal_BT=inputs["old_logp"],
        reference_BT=inputs["ref_logp"],
        entropy_BT=entropies,
    )
    objective.loss.backward()
    values = finish(objective.metrics)
    return {
        "loss": objective.loss,
        "policy": values["loss/policy"],
        "kl": values["loss/kl"],
        # With coefficient 0 the entropy is not in the loss; the case expects it all the same.
        "entropy_value": _aggregate(inputs["entropy"], mask, params, params["agg"]),
        "grad_logp": leaf.grad,
        "grad_entropy": torch.zeros_like(entropies) if entropies.grad is None else entropies.grad,
    }


def _loss_entropy(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    leaf, mask = _leaf(inputs["logits"]), mask_of(inputs)
    token_entropy = entropy(leaf)
    value = _aggregate(token_entropy, mask, params, params["agg"])
    value.backward()
    return {"value": value, "grad_logits": leaf.grad, "token_entropy": token_entropy}


def _logp(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    temperature = params.get("temperature", 1.0)
    return {"value": token_logprobs(inputs["logits"], inputs["labels"], temperature=temperature)}


ADAPTERS: Mapping[str, Adapter] = {
    **COLUMNS,
    **DISTILLATION,
    **SELECTIONS,
    **STALENESS,
    **OFF_POLICY,
    **REWARDS,
    **PREFERENCE,
    "adv.grpo": group_advantage(
        advantages.group_relative, "divide_by_std=norm_by_std", "eps=eps", "singleton=singleton"
    ),
    "adv.rloo": group_advantage(advantages.leave_one_out, "singleton=singleton"),
    "adv.opo": group_advantage(advantages.length_weighted_baseline, "singleton=singleton"),
    "adv.gpg": group_advantage(advantages.scaled_by_informative, "f_norm=f_norm", "singleton=singleton"),
    "adv.grpo_passk": group_advantage(advantages.best_of_group, "divide_by_std=norm_by_std", "eps=eps"),
    "adv.reinforce_pp_baseline": group_advantage(advantages.group_baseline_whitened, "singleton=singleton"),
    "adv.grpo_sessions": _sessions,
    "adv.reinforce_pp": _reinforce_pp,
    "stats.whiten": _whiten,
    "agg.loss": _agg_loss,
    "agg.split": _agg_split,
    "kl.estimate": _kl_estimate,
    "kl.full": _kl_full,
    "kl.controller": _kl_controller,
    "kl.in_reward": _kl_in_reward,
    "loss.ppo_clip": _loss(losses.ppo_clip, _CLIP | {"dual_clip_c": "dual_clip"}),
    "loss.gspo": _loss(sequence_losses.gspo, _CLIP),
    "loss.cispo": _loss(losses.cispo, _CLIP),
    "loss.reinforce": _loss(losses.reinforce),
    "loss.gmpo": _loss(sequence_losses.gmpo, _CLIP, mode="seq-mean-token-sum"),
    "loss.sapo": _loss(losses.sapo, {"tau_pos": "tau_positive", "tau_neg": "tau_negative"}),
    "loss.dppo_tv": _loss(losses.dppo_tv, _CLIP | {"ratio_cap": "ratio_cap"}),
    "loss.dppo_kl": _loss(losses.dppo_kl, _CLIP | {"ratio_cap": "ratio_cap"}),
    "loss.dro": _loss(losses.dro, {"dro_beta": "beta"}),
    "loss.total": _total,
    "loss.entropy": _loss_entropy,
    "loss.decoupled_ppo": _decoupled,
    "loss.bypass": _bypass,
    "logits.entropy": lambda inputs, params: {"value": entropy(inputs["logits"])},
    "logits.logp": _logp,
    "logits.sum_pi_sq": lambda inputs, params: {"value": sum_pi_squared(inputs["logits"])},
}
