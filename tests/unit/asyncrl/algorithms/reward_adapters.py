"""Golden cases of what happens to rewards before advantages."""

from collections.abc import Mapping
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch

from asyncrl.algorithms.rewards import overlong_penalty, zero_variance
from tests.unit.asyncrl.algorithms.golden import Adapter

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def _overlong(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    lengths, scores = torch.as_tensor(inputs["lengths"]), torch.as_tensor(inputs["scores"])
    penalty = overlong_penalty(
        lengths, max_length=params["max_length"], buffer=params["buffer"], factor=params["factor"]
    )
    return {"penalty": penalty, "rewards": scores + penalty}


def _filter_groups(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    found = zero_variance(inputs["groups"])
    return {
        "dropped": list(found.dropped),
        "dropped_value_counts": {str(value): number for value, number in found.counts_by_value.items()},
    }


REWARDS: Mapping[str, Adapter] = {
    "reward.overlong": _overlong,
    "dapo.filter_groups": _filter_groups,
}
