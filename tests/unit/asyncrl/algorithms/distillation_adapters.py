"""Calls the distillation functions with the names and shapes of the golden cases."""

from collections.abc import Mapping
from functools import partial
from typing import Any  # a case's inputs and results are whatever its JSON holds

import torch
from torch import Tensor

from asyncrl.algorithms.aggregation import aggregate
from asyncrl.algorithms.distillation import distillation_loss, topk_forward_kl, towards_teacher
from asyncrl.algorithms.losses import ppo_clip
from tests.unit.asyncrl.algorithms.golden import Adapter

Inputs = Mapping[str, Any]
Results = Mapping[str, Any]


def _topk_forward_kl(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    logits = inputs["student_logits"].clone().requires_grad_()
    got = topk_forward_kl(
        logits, inputs["teacher_topk_logp"], inputs["teacher_topk_ids"].long(), logp_min=params["logp_min"]
    )
    got.value_N.sum().backward()
    return {
        "value": got.value_N,
        "student_mass": got.student_mass_N,
        "teacher_mass": got.teacher_mass_N,
        "overlap_count": got.overlap_N,
        "grad_student_logits": logits.grad,
    }


def _on_policy_pg(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    logp, mask = inputs["logp"].clone().requires_grad_(), inputs["mask"] > 0
    advantages = towards_teacher(
        torch.zeros(len(mask)),
        mask,
        torch.zeros(len(mask), dtype=torch.int64),
        logprobs_BT=inputs["logp"],
        teacher_BT=inputs["teacher_logp"],
        kind=params["kind"],
        max_abs=params["max_abs"],
    )
    clip = partial(ppo_clip, low=params["clip_low"], high=params["clip_high"], dual_clip=params["dual_clip_c"])
    loss = _total(clip(logp, inputs["old_logp"], advantages, mask).loss_BT, mask, params["agg"])
    loss.backward()
    return {"loss": loss, "grad_logp": logp.grad}


def _on_policy_supervised(inputs: Inputs, params: Mapping[str, Any]) -> Results:
    logp, mask = inputs["logp"].clone().requires_grad_(), inputs["mask"] > 0
    tokens = distillation_loss(logp, inputs["teacher_logp"], mask, kind=params["kind"], max_abs=params["max_abs"])
    loss = _total(tokens.loss_BT, mask, params["agg"])
    loss.backward()
    return {"loss": loss, "grad_logp": logp.grad}


def _total(loss_BT: Tensor, mask: Tensor, mode: str) -> Tensor:
    return aggregate(loss_BT, mask, mode, global_tokens=None, global_seqs=None)


DISTILLATION: Mapping[str, Adapter] = {
    "distill.topk_forward_kl": _topk_forward_kl,
    "distill.on_policy_pg": _on_policy_pg,
    "distill.on_policy_supervised": _on_policy_supervised,
}
