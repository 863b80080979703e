"""Sections of the trainer cluster: model, starter, algorithm, actor, trainer, eval."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from asyncrl.config.checkpoint import CheckpointConfig
from asyncrl.config.optimizer import OptimizerConfig
from asyncrl.config.parallel import ParallelConfig
from asyncrl.config.section import Section


class ModelConfig(Section):
    """The model that is trained and served."""

    path: Path = Path("runs/model")
    """Directory with a Hugging Face model and its tokenizer; version 0 of the run on both sides."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of forward and backward in the trainer. Master weights and optimizer are float32 either way."""

    wire_dtype: Literal["bfloat16", "float32", "float16"] = "bfloat16"
    """Type of the weights that servers hold and that weight sync compares bit by bit."""

    offload_reference: bool = False
    """Keep the frozen reference model, where an algorithm has one, in CPU memory between its passes: less device memory
    in use, and a copy of it to the device in every step."""


class StarterModelConfig(Section):
    """The tiny model that the starter makes from nothing (a Llama, random weights, character tokenizer)."""

    hidden_size: int = Field(64, ge=8)
    """Width of the residual stream."""
    layers: int = Field(2, ge=1)
    """Decoder layers."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    kv_heads: int = Field(2, ge=1)
    """Key and value heads; heads must be a multiple of it."""


class StarterTaskConfig(Section):
    """The verifiable task that the starter writes as parquet files in verl's schema."""

    name: str = "sort_digits"
    """Row of the starter's table of tasks; also the data_source that picks the reward, unless the row says another."""
    train_rows: int = Field(4096, ge=1)
    """Prompts in the training file; none of them is held out."""
    val_rows: int = Field(256, ge=1)
    """Held-out prompts."""
    min_digits: int = Field(3, ge=1)
    """Fewest digits in a prompt."""
    max_digits: int = Field(5, ge=1)
    """Most digits in a prompt."""


class StarterSftConfig(Section):
    """The supervised warm start, so that rewards are not all zero at the first step."""

    steps: int = Field(300, ge=0)
    """Optimizer steps; 0 leaves the weights random."""
    batch_size: int = Field(64, ge=1)
    """Demonstrations per step."""
    lr: float = Field(2e-3, gt=0)
    """Peak learning rate, reached after 20 steps."""
    decoy: float = Field(0.7, ge=0, le=1)
    """Share of demonstrations drawn from several behaviours (copy, reverse, descending, right) instead of the right
    one: the model learns the format and several answers, and reinforcement learning selects among them."""


class StarterTeacherConfig(Section):
    """A second model of the same shape and tokenizer, warm-started otherwise: for runs that distil from a teacher."""

    path: Path = Path("runs/teacher")
    """Directory to make it in; name it as the path of an entry of teachers."""
    steps: int = Field(900, ge=1)
    """Optimizer steps of its warm start, with the batches and the learning rate of the model's."""
    decoy: float = Field(0.0, ge=0, le=1)
    """Share of its demonstrations that show several behaviours instead of the right one."""


class StarterConfig(Section):
    """What `asyncrl starter` makes at model.path, data.train_files and data.val_files, if it is missing."""

    model: StarterModelConfig = StarterModelConfig()
    """Shape of the model."""
    task: StarterTaskConfig = StarterTaskConfig()
    """Prompts and answers."""
    sft: StarterSftConfig = StarterSftConfig()
    """Warm start."""
    teacher: StarterTeacherConfig | None = None
    """A teacher to make beside the model. None: none is made."""
    seed: int = Field(0, ge=0)
    """Seed of weights, prompts and demonstrations."""


class AlgorithmConfig(Section):
    """What is optimised. `name` picks a vetted row; any other key set here replaces that part of the row."""

    name: str = "grpo"
    """Row of asyncrl.algorithms.ALGORITHMS."""
    adv_estimator: str | None = None
    """Advantage estimator, by the name of a row that has it (grpo, rloo, ...). None: the row's."""
    gamma: float | None = Field(None, ge=0, le=1)
    """Discount of a token, for estimators of returns (reinforce_pp, ppo_gae; a critic's returns have the same). None:
    the row's."""
    lam: float | None = Field(None, ge=0, le=1)
    """Lambda of ppo_gae's advantages: 1 trusts the rewards alone, 0 the critic after one token. None: the row's."""
    loss: str | None = None
    """Policy loss by name (ppo_clip, gspo, cispo, ...). None: the row's."""
    loss_settings: dict[str, float] = Field(default_factory=dict)
    """Numbers of the loss by their names there, where they are not a clip range of actor: beta of dro, penalty of
    kl_cov, tau_positive and tau_negative of sapo, ratio_cap of dppo_tv and dppo_kl. Others: the row's."""
    selection_settings: dict[str, float] = Field(default_factory=dict)
    """Numbers of the rule over the whole mini-batch: threshold of m2po, share of kl_cov, and share, lower and upper of
    clip_cov. Others: the row's."""
    loss_agg_mode: str | None = None
    """How token losses become one number: token-mean, token-sum, seq-mean-token-sum, seq-mean-token-mean,
    seq-mean-token-sum-norm. None: the row's."""
    norm_length: int | None = Field(None, ge=1)
    """Divisor, in tokens, of seq-mean-token-sum-norm. None: rollout.max_new_tokens."""
    correction: str | None = None
    """Off-policy correction of the sampler's policy to the trainer's: none, tis (truncated importance sampling per
    token), tis_sequence, icepop, mask_sequence, mask_geometric. None: the row's."""
    correction_cap: float | None = Field(None, gt=0)
    """Largest importance weight of `correction`. None: the row's."""
    correction_normalize: bool | None = None
    """Divide the importance weights by their mean over the optimizer step. None: the row's."""
    bypass: bool | None = None
    """Two policies instead of three: centre the ratio on the sampler's logprobs. None: the row's."""
    proximal: str | None = None
    """Centre of the clip: recompute (the weights at the start of the step), or loglinear / linear (interpolated between
    them and the sampler's by the tokens' lag). None: the row's."""
    reward_kl_coef: float | None = Field(None, ge=0)
    """Coefficient, at the start, of a KL penalty to the reference in the reward. 0: none. None: the row's."""
    reward_kl_estimator: str | None = None
    """Estimator of that penalty: k1, k2, k3, abs. None: the row's, or k1."""
    reward_kl_target: float | None = Field(None, gt=0)
    """KL, in nats a token, that the coefficient is steered to. None: the row's, or a fixed coefficient."""
    reward_kl_horizon: float | None = Field(None, gt=0)
    """Answers after which an error of 20 % or more has changed the coefficient by 20 %. None: the row's, or 10000."""
    overlong_buffer: int | None = Field(None, ge=0)
    """Tokens before rollout.max_new_tokens over which a penalty on the reward grows. 0: none. None: the row's."""
    overlong_factor: float | None = Field(None, gt=0)
    """The penalty at the limit. None: the row's, or 1."""
    filter_overlong: bool | None = None
    """Leave answers that were cut at the limit out of the loss; their rewards stay in the baseline. None: the row's."""
    kl_coef: float | None = Field(None, ge=0)
    """Weight of the KL term to the reference model (the run's version 0). 0: none is loaded. None: the row's."""
    kl_estimator: str | None = None
    """Estimator of the KL term: k2, k3, or one with `+` for its straight-through form. None: the row's."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus. None: the row's."""
    distill_coef: float | None = Field(None, ge=0)
    """Weight of a term that pulls each token towards its teacher. 0: none. None: the row's."""
    distill_estimator: str | None = None
    """Estimator of that term: k2, k3, or one with `+` for its straight-through form, from the sampled token; topk: the
    forward KL over the likeliest tokens of teachers with top_k. None: the row's, or k2."""
    preference_loss: str | None = None
    """Loss of a pair: sigmoid (DPO), ipo, hinge or sppo_hard. None: the row's."""
    preference_beta: float | None = Field(None, gt=0)
    """How strongly a pair's loss holds the policy to the reference, or to the sampler (spin). None: the row's."""
    preference_smoothing: float | None = Field(None, ge=0, lt=0.5)
    """Share of pairs taken to be the wrong way round; with the sigmoid loss only. None: the row's."""
    preference_eta: float | None = Field(None, gt=0)
    """Step of sppo: a certain win draws an answer's log ratio to half of it, in nats. None: the row's."""
    filter_zero_variance: bool | None = None
    """Dynamic sampling: count groups whose rewards are all equal instead of training on them, and play other prompts in
    their place. None: the row's."""
    max_gen_batches: int = Field(0, ge=0)
    """Batches' worth of groups that one step may generate and filter so; beyond it the run stops. 0: no bound."""
    max_nonfinite_frac: float = Field(0.01, ge=0, le=1)
    """Share of a step's tokens that may be NaN or infinite (masked and counted) before the run stops."""


class ActorConfig(OptimizerConfig):
    """The optimizer of the policy and the trust region of its loss."""

    clip_ratio: float | None = Field(None, gt=0)
    """Clip range of the probability ratio, both sides. Not together with the next two."""
    clip_ratio_low: float | None = Field(None, gt=0)
    """Lower side of the clip range. None: the algorithm's."""
    clip_ratio_high: float | None = Field(None, gt=0)
    """Upper side (clip-higher when larger than the lower). None: the algorithm's."""
    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip: bound on the ratio where the advantage is negative. None: the algorithm's."""
    clip_lag_scale: float | None = Field(None, gt=0, le=1)
    """Factor on the clip range for each version of a token's lag: 0.9 halves it in about seven. None: 1."""
    ppo_epochs: int = Field(1, ge=1)
    """Passes over a step's groups; above 1 the proximal logprobs are those at the start of the step."""
    ppo_mini_batches: int = Field(1, ge=1)
    """Optimizer steps that one pass is split into, by whole groups."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Most tokens, padding included, in one forward pass of a rank. It changes memory and speed, never the gradient."""
    packing: bool | None = None
    """Lay the rows of a forward pass one after another, without padding; attention stays within each. false: pad them
    to the longest. None: pack where the model's attention can; true: refuse a model that cannot. It changes speed,
    never the gradient."""
    share_prompts: bool = True
    """Read the prompt that several rows of a forward pass begin with once for all of them, where rows are packed. It
    changes speed, never the gradient. Not done where it would save less than a sixteenth of the tokens, where ranks
    share rows (trainer.parallel.cp), and for rows with recorded experts."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    replay_experts: bool = True
    """Of a model with experts: send a token to those that the server recorded (column routed_experts of its row), where
    it did. The gates are the trainer's own. Rows without the column are trained as ever."""

    @model_validator(mode="after")
    def one_way_to_clip(self) -> Self:
        """Refuse two answers to one question, of which one would silently win."""
        if self.clip_ratio is not None and (self.clip_ratio_low is not None or self.clip_ratio_high is not None):
            raise ValueError(
                f"actor.clip_ratio = {self.clip_ratio} sets both sides of the clip range, but actor.clip_ratio_low = "
                f"{self.clip_ratio_low} or actor.clip_ratio_high = {self.clip_ratio_high} is set too. Keep one form."
            )
        return self


class TrainerConfig(Section):
    """The training loop: how long, on how many ranks, and what is saved."""

    steps: int = Field(100, ge=1)
    """Training steps; each leases schedule.groups_per_step groups."""
    max_hours: float | None = Field(None, gt=0)
    """Hours of training after which the run ends as finished, over all starts; what stands in the newest checkpoint
    counts, the time between a stop and a resume does not. None: no bound."""
    target_score: float | None = None
    """Held-out score (mean over sources) at which the run ends as finished; looked at after each evaluation. None: no
    target."""
    stop_grace_s: float = Field(120.0, gt=0)
    """Seconds from a stop (a signal, `asyncrl stop`) to the end of every rank. A step that would not leave time for a
    checkpoint is left, and its groups are given back; then the run goes on from the newest checkpoint."""
    engine: Literal["fsdp2"] = "fsdp2"
    """Who reads models, splits them over ranks and runs them: fsdp2, which takes any causal language model of
    transformers."""
    parallel: ParallelConfig = ParallelConfig()
    """Ranks."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Checkpoints."""
    lease_wait_s: float = Field(21600.0, gt=0)
    """Seconds to wait for groups before checkpointing and leaving with exit code 75, to be started with --resume."""
    max_restarts: int = Field(3, ge=0)
    """Times the ranks are started again from the newest checkpoint after one of them died."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks compute; auto takes CUDA when there is one device for each rank."""
    peak_tflops: float | None = Field(None, gt=0)
    """What one device can do at most, in 10^12 operations a second of model.dtype; perf/mfu/actor is a share of it.
    None: what is known of the device in bfloat16, and no such metric for others."""
    samples_per_eval: int = Field(4, ge=0)
    """Held-out trajectories written out as text beside each evaluation's numbers."""


class EvalConfig(Section):
    """Held-out evaluation; its prompts travel through a ledger of their own, on the same servers."""

    every_versions: int = Field(0, ge=0)
    """Versions between two evaluations during the run; 0: only before the first step and after the last."""
    n: int = Field(1, ge=1)
    """Answers sampled per held-out prompt."""
    temperature: float | None = Field(None, ge=0)
    """Their temperature; 0 takes the likeliest token each time. None: rollout.temperature."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Their nucleus, 1 = off. None: rollout.top_p."""
    top_k: int | None = Field(None, ge=-1)
    """Sample them among the k likeliest tokens, -1 = all. None: rollout.top_k."""
    max_prompts: int | None = Field(None, ge=1)
    """Held-out prompts that are played, the first of data.val_files. None: all."""
    pass_reward: float = 1.0
    """Smallest reward of an answer that passes, for pass@k."""
    pin: bool = True
    """Evaluate between steps beside training, where two servers or more have devices of their own: one of them stays at
    the version meanwhile and plays held-out prompts, while the others go on with new versions and training prompts.
    false, and where there is one server: training waits."""
    deadline_s: float = Field(3600.0, gt=0)
    """Seconds an evaluation may take; one that takes longer is left out, and training goes on."""

    @model_validator(mode="after")
    def answers_can_differ(self) -> Self:
        """Refuse several greedy answers to one prompt, which are all the same, and 0 tokens to draw from."""
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"eval.temperature = 0 takes the likeliest token each time, so the eval.n = {self.n} answers to a "
                "prompt would be one. Set eval.n to 1, or a temperature above 0."
            )
        if self.top_k == 0:
            raise ValueError("eval.top_k = 0 leaves no token to draw; -1 is off")
        return self
