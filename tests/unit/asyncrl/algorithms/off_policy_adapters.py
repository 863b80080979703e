"""Golden cases of corrections, rejection, mismatch and staleness: what compares the sampler's policy with another."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch
from torch import Tensor

from asyncrl.algorithms.corrections import Weighting, correct, normalized
from asyncrl.algorithms.masking import Metrics
from asyncrl.algorithms.measures import finish
from asyncrl.algorithms.mismatch import mismatch, probability_difference
from asyncrl.algorithms.rejection import Rule, minimum_variance_kept
from asyncrl.algorithms.staleness import lag_metrics, proximal_logprobs
from tests.unit.asyncrl.algorithms.golden import Adapter

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def mask_of(inputs: Inputs) -> Tensor:
    return torch.as_tensor(inputs["mask"]) > 0


def numbers(sums: Metrics, extremes: Mapping[str, Tensor] | None = None) -> dict[str, float]:
    return {name.rpartition("/")[2]: value for name, value in finish(sums, extremes).items()}


def weighting(spec: Mapping[str, Any] | None) -> Weighting | None:
    return None if spec is None else Weighting(spec["level"], spec["mode"], upper=spec["upper"], lower=spec["lower"])


def rules(specs: Sequence[Mapping[str, Any]]) -> list[Rule]:
    """The cases give k1 bounds on the inverse of the ratio that our rules bound."""
    rules = []
    for spec in specs:
        bounds = spec.get("bounds_inv_ratio")
        inverted = None if bounds is None else (1 / bounds[1], 1 / bounds[0])
        rules.append(Rule(spec["level"], spec["stat"], upper=spec.get("upper"), bounds=inverted))
    return rules


def _tensors(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.tensor([[float(v) for v in row] for row in values])


def _policies(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    return _tensors(inputs["train_logp"]), _tensors(inputs["rollout_logp"]), mask_of(inputs)


def _is_weights(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    found = correct(*_policies(inputs), weighting=weighting(params))
    values, weights = numbers(found.metrics, found.extremes), found.weights_BT
    if params["normalize"]:
        values["norm_factor"] = values.get("mean" if params["level"] == "token" else "seq_mean", 0.0)
        weights = normalized(weights, values["norm_factor"])
    return {"weights": weights, "metrics": values}


def _reject(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    found = correct(*_policies(inputs), weighting=None, rules=rules(params["rules"]))
    return {"mask": found.keep_BT.float(), "metrics": numbers(found.metrics)}


def _measured(measure: Callable[..., tuple[Metrics, dict[str, Tensor]]]) -> Adapter:
    return lambda inputs, params: {"metrics": numbers(*measure(*_policies(inputs)))}


def _stale_metrics(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    versions = torch.as_tensor(inputs["versions"])
    return {"metrics": numbers(*lag_metrics(versions, mask_of(inputs), current=params["current_version"]))}


def _proximal(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    mixed = proximal_logprobs(
        inputs["behaviour_logp"],
        inputs["logp"],
        inputs["versions"],
        current=params["current_version"],
        method=params["method"],
    )
    return {"proximal_logp": mixed}


def _m2po(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    return {"mask": minimum_variance_kept(*_policies(inputs), threshold=params["threshold"]).float()}


OFF_POLICY: Mapping[str, Adapter] = {
    "rollout.is_weights": _is_weights,
    "rollout.reject": _reject,
    "rollout.mismatch": _measured(mismatch),
    "rollout.prob_diff": _measured(probability_difference),
    "stale.metrics": _stale_metrics,
    "stale.proximal_logp": _proximal,
    "stale.m2po_mask": _m2po,
}
