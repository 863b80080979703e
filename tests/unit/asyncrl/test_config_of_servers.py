"""Which machines may have workers without servers, servers without workers, and how a notice is configured."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from asyncrl.config import Config, InferenceConfig, RolloutConfig
from asyncrl.config.rollout import PreemptionConfig


def test_workers_without_servers_are_refused_and_a_machine_for_added_servers_needs_none() -> None:
    with pytest.raises(ValidationError, match=r"inference\.servers = 0.*rollout\.workers = 0"):
        Config(inference=InferenceConfig(servers=0))
    assert Config(inference=InferenceConfig(servers=0), rollout=RolloutConfig(workers=0)).inference.urls == ()
    assert Config(inference=InferenceConfig(servers=0, urls=("http://127.0.0.1:1",))).rollout.workers == 1


def test_nothing_announces_a_preemption_unless_it_is_said_how() -> None:
    usual = InferenceConfig().preemption
    assert (usual.file, usual.command) == (None, ())
    own = PreemptionConfig(file=Path("/run/notice"), command=("true",), every_s=1.0)
    assert InferenceConfig(preemption=own).preemption == own
    with pytest.raises(ValidationError, match="every_s"):
        PreemptionConfig(every_s=0.0)


def test_vllm_is_refused_what_it_does_not_say_or_says_otherwise() -> None:
    vllm = InferenceConfig(engine="vllm")
    assert Config(inference=vllm).inference.engine == "vllm"
    for rollout in (RolloutConfig(top_p=0.9), RolloutConfig(top_k=5)):
        with pytest.raises(ValidationError, match=r"does not go with rollout\.top_p or rollout\.top_k"):
            Config(inference=vllm, rollout=rollout)
    with pytest.raises(ValidationError, match="lends the trainer's devices"):
        Config(inference=vllm, mode="colocate_async")
    with pytest.raises(ValidationError, match="whether it was started with our weight loader"):
        InferenceConfig(engine="vllm", urls=("http://127.0.0.1:1",))
    with pytest.raises(ValidationError, match="is not asked for them"):
        InferenceConfig(engine="vllm", record_experts=True)
