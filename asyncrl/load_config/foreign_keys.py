"""Keys that users of other systems would type, our key for each, and what differs in meaning or unit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from asyncrl.load_config.keys import known_keys, known_sections

SAME = "the same number"
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."  # verl's long sections
EPOCHS = "epochs there, steps here: epochs x prompts / schedule.groups_per_step"
EVALS = "steps there, versions (of schedule.steps_per_version steps) here; 0 is never during the run"
KL_IN_REWARD = "KL in the reward there, in the loss here"


@dataclass(frozen=True)
class ForeignKey:
    """One row: `key` of `system` is `ours` here ("" if there is none); `note` says what differs."""

    system: str
    key: str
    ours: str
    note: str


def answer(key: str) -> str | None:
    """What to tell somebody who typed another system's key; None if no system is known to have it.

    Its full name counts, and its last part where that cannot be a slip of one of our own keys.
    """
    rows = _by_full_name().get(key) or ()
    section, _, name = key.rpartition(".")
    if not rows and ("_" in name or section == "" or section not in known_sections()):
        rows = _by_last_part().get(name, ())
    texts = {
        f"{'this' if row.key == key else row.key} is {row.system}'s key; "
        + (f"here it is {row.ours}: {row.note}" if row.ours else f"there is no such key here: {row.note}")
        for row in rows
    }
    return ". ".join(sorted(texts)) or None


@cache
def _by_full_name() -> Mapping[str, Sequence[ForeignKey]]:
    table: dict[str, list[ForeignKey]] = defaultdict(list)
    for row in FOREIGN_KEYS:
        table[row.key].append(row)
    return table


@cache
def _by_last_part() -> Mapping[str, Sequence[ForeignKey]]:
    """Without the parts that end a key of ours too: for those the nearest key of ours is the better answer."""
    own = {key.rpartition(".")[2] for key in known_keys()}
    table: dict[str, list[ForeignKey]] = defaultdict(list)
    for row in FOREIGN_KEYS:
        if (name := row.key.rpartition(".")[2]) not in own:
            table[name].append(row)
    return table


_ROWS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "verl": (
        ("data.train_batch_size", "schedule.groups_per_step", "prompts per step in both, rollout.n answers to each"),
        ("data.max_prompt_length", "data.max_prompt_tokens", "tokens in both"),
        ("data.max_response_length", "rollout.max_new_tokens", "the whole response there, one turn of the model here"),
        ("actor_rollout_ref.model.path", "model.path", "a local directory here; nothing is downloaded"),
        ("actor_rollout_ref.model.enable_gradient_checkpointing", "actor.gradient_checkpointing", "a switch in both"),
        ("actor_rollout_ref.model.lora_rank", "lora.rank", "the same number; 0 is off in both"),
        ("actor_rollout_ref.model.lora_alpha", "lora.alpha", SAME),
        ("actor_rollout_ref.model.target_modules", "lora.target_modules", "all-linear or a list of names in both"),
        ("actor_rollout_ref.model.lora_adapter_path", "lora.path", "a directory in peft's form in both"),
        (f"{ACTOR}optim.lr", "actor.lr", SAME),
        (f"{ACTOR}optim.weight_decay", "actor.weight_decay", SAME),
        (f"{ACTOR}optim.lr_warmup_steps", "actor.warmup_steps", "optimizer steps in both; 0 is off here"),
        (
            f"{ACTOR}optim.lr_warmup_steps_ratio",
            "actor.warmup_steps",
            "a share of all steps there, optimizer steps here",
        ),
        (f"{ACTOR}grad_clip", "actor.grad_clip", SAME),
        (f"{ACTOR}clip_ratio", "actor.clip_ratio", "the same number; alone it sets both sides"),
        (f"{ACTOR}clip_ratio_low", "actor.clip_ratio_low", SAME),
        (f"{ACTOR}clip_ratio_high", "actor.clip_ratio_high", SAME),
        (f"{ACTOR}clip_ratio_c", "actor.clip_ratio_c", SAME),
        (f"{ACTOR}ppo_epochs", "actor.ppo_epochs", SAME),
        (
            f"{ACTOR}ppo_mini_batch_size",
            "actor.ppo_mini_batches",
            "prompts per optimizer step there, optimizer steps per pass here: train_batch_size / ppo_mini_batch_size",
        ),
        (
            f"{ACTOR}ppo_micro_batch_size_per_gpu",
            "actor.micro_batch_tokens",
            "sequences there, tokens with padding here",
        ),
        (f"{ACTOR}ppo_max_token_len_per_gpu", "actor.micro_batch_tokens", "tokens of one forward pass in both"),
        (
            f"{ACTOR}use_dynamic_bsz",
            "actor.micro_batch_tokens",
            "a switch there; micro-batches always go by tokens here",
        ),
        (f"{ACTOR}loss_agg_mode", "algorithm.loss_agg_mode", "the same names"),
        (f"{ACTOR}entropy_coeff", "algorithm.entropy_coef", SAME),
        (f"{ACTOR}use_kl_loss", "algorithm.kl_coef", "a switch there; here any weight above 0 turns the term on"),
        (f"{ACTOR}kl_loss_coef", "algorithm.kl_coef", SAME),
        (f"{ACTOR}kl_loss_type", "algorithm.kl_estimator", "low_var_kl is k3 here, mse is k2"),
        ("critic.model.path", "critic.path", "a local directory here; without it the policy's own"),
        ("critic.optim.lr", "critic.lr", SAME),
        ("critic.cliprange_value", "critic.clip", SAME),
        ("trainer.critic_warmup", "critic.steps_before_policy", "training steps in both"),
        ("algorithm.use_kl_in_reward", "algorithm.kl_coef", KL_IN_REWARD),
        ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_coef", KL_IN_REWARD),
        ("algorithm.norm_adv_by_std_in_grpo", "algorithm.name", "false is part of the row dr_grpo"),
        ("algorithm.filter_groups.enable", "algorithm.filter_zero_variance", "a switch in both"),
        (f"{ROLLOUT}n", "rollout.n", SAME),
        (f"{ROLLOUT}temperature", "rollout.temperature", "the same number; the trainer's logprobs use it too"),
        (f"{ROLLOUT}top_p", "rollout.top_p", SAME),
        (f"{ROLLOUT}top_k", "rollout.top_k", "the same number; -1 is off in both"),
        (f"{ROLLOUT}name", "inference.engine", "local or sglang here"),
        (f"{ROLLOUT}tensor_model_parallel_size", "inference.tp", SAME),
        (
            f"{ROLLOUT}max_num_seqs",
            "inference.max_running_requests",
            "requests that one server decodes at once in both",
        ),
        (f"{ROLLOUT}max_model_len", "inference.context_length", "tokens of prompt and answer together in both"),
        (f"{ROLLOUT}val_kwargs.n", "eval.n", "answers per held-out prompt in both"),
        (f"{ROLLOUT}val_kwargs.temperature", "eval.temperature", "the same number; 0 is greedy in both"),
        (f"{ROLLOUT}val_kwargs.top_p", "eval.top_p", SAME),
        ("data.val_max_samples", "eval.max_prompts", "the first of the files here"),
        (f"{ROLLOUT}multi_turn.max_assistant_turns", "rollout.max_turns", "turns of the model in both"),
        ("custom_reward_function.path", "rollout.reward.file", "a Python file in both, the function's arguments too"),
        ("custom_reward_function.name", "rollout.reward.function", "the function's name in both"),
        ("trainer.total_epochs", "trainer.steps", EPOCHS),
        ("trainer.total_training_steps", "trainer.steps", "steps in both"),
        ("trainer.save_freq", "trainer.checkpoint.every_steps", "steps in both; it cannot be turned off here"),
        ("trainer.test_freq", "eval.every_versions", EVALS),
        (
            "trainer.val_before_train",
            "data.val_files",
            "held-out prompts, if any, are always scored before step 1 here",
        ),
        ("trainer.max_actor_ckpt_to_keep", "trainer.checkpoint.keep_last", "newest checkpoints in both"),
        ("trainer.default_local_dir", "run.dir", "checkpoints there; metrics, export and summary too here"),
        ("trainer.experiment_name", "run.name", "a name in both; here it is also the run's name in Redis"),
        ("trainer.project_name", "metrics.wandb_project", "the project in Weights & Biases in both"),
        ("trainer.logger", "metrics.sinks", "a list in both; console and metrics.jsonl are always on here"),
        ("trainer.n_gpus_per_node", "trainer.parallel.fsdp", "devices of one node there, ranks in all here"),
        ("trainer.resume_mode", "", "resuming is asked for by the flag --resume of `asyncrl train`"),
        ("trainer.v1.trainer_mode", "mode", "sync, colocate_async and separate_async in both"),
        (
            "trainer.v1.sampler.max_off_policy_threshold",
            "staleness.limit",
            "versions from first token to training with both ends counted there, the distance here: one less",
        ),
        ("trainer.v1.sampler.max_off_policy_strategy", "staleness.policy", "drop and wait in both"),
        (
            "trainer.v1.separate_async.parameter_sync_step",
            "schedule.steps_per_version",
            "optimizer updates there, training steps here",
        ),
        (
            "async_training.staleness_threshold",
            "staleness.limit",
            "a share of samples generated ahead there, versions between sampling and training here; 0 is on-policy",
        ),
        (
            "async_training.trigger_parameter_sync_step",
            "schedule.steps_per_version",
            "optimizer updates there, training steps here",
        ),
    ),
    "prime-rl": (
        (
            "orchestrator.max_off_policy_steps",
            "staleness.limit",
            "trainer steps there, versions (of schedule.steps_per_version steps) here; older rollouts are dropped "
            "there, here staleness.policy decides",
        ),
        (
            "max_async_level",
            "staleness.limit",
            "steps that generation may run ahead there; here that follows from staleness.limit, in versions",
        ),
        ("orchestrator.batch_size", "schedule.groups_per_step", "rollouts there, groups of rollout.n here"),
        ("orchestrator.rollouts_per_example", "rollout.n", SAME),
        ("orchestrator.group_size", "rollout.n", SAME),
        ("orchestrator.sampling.max_tokens", "rollout.max_new_tokens", "tokens in both"),
        ("orchestrator.sampling.temperature", "rollout.temperature", SAME),
        ("trainer.optim.lr", "actor.lr", SAME),
        ("trainer.ckpt.interval", "trainer.checkpoint.every_steps", "steps in both"),
        ("seq_len", "inference.context_length", "tokens of the longest sequence in both"),
    ),
    "AReaL": (
        (
            "rollout.max_head_offpolicyness",
            "staleness.limit",
            "versions in both; kept at admission there, here also when a group is trained on",
        ),
        ("rollout.max_concurrent_rollouts", "rollout.slots", "rollouts in all there, episodes of one worker here"),
        ("rollout.consumer_batch_size", "schedule.groups_per_step", "prompts per step in both"),
        ("train_dataset.batch_size", "schedule.groups_per_step", "prompts per step in both"),
        ("gconfig.n_samples", "rollout.n", SAME),
        ("gconfig.max_new_tokens", "rollout.max_new_tokens", "tokens in both"),
        ("gconfig.temperature", "rollout.temperature", SAME),
        ("actor.optimizer.lr", "actor.lr", SAME),
        ("actor.eps_clip", "actor.clip_ratio", "the same number, both sides"),
        ("actor.kl_ctl", "algorithm.kl_coef", KL_IN_REWARD),
        ("actor.ppo_n_minibatches", "actor.ppo_mini_batches", "parts of one pass in both"),
        ("actor.mb_spec.max_tokens_per_mb", "actor.micro_batch_tokens", "tokens of one forward pass in both"),
        ("actor.behav_imp_weight_cap", "algorithm.correction_cap", "largest importance weight in both"),
        ("total_train_epochs", "trainer.steps", EPOCHS),
        ("async_training", "mode", "a switch there, a row of the table of modes here"),
    ),
    "TRL": (
        ("num_generations", "rollout.n", SAME),
        ("max_completion_length", "rollout.max_new_tokens", "tokens in both; one turn of the model here"),
        ("max_prompt_length", "data.max_prompt_tokens", "tokens in both; longer prompts: data.filter_overlong_prompts"),
        ("beta", "algorithm.kl_coef", SAME),
        ("epsilon", "actor.clip_ratio", "the same number, both sides; with epsilon_high it is actor.clip_ratio_low"),
        ("epsilon_high", "actor.clip_ratio_high", SAME),
        ("num_iterations", "actor.ppo_epochs", "passes over a batch in both"),
        ("loss_type", "algorithm.name", "a loss there, a row with loss, advantages and aggregation here"),
        ("scale_rewards", "algorithm.name", "without the division by the standard deviation it is the row dr_grpo"),
        ("learning_rate", "actor.lr", SAME),
        ("max_grad_norm", "actor.grad_clip", SAME),
        ("lr_scheduler_type", "actor.lr_decay", "constant, linear or cosine here; warm-up is actor.warmup_steps"),
        (
            "per_device_train_batch_size",
            "schedule.groups_per_step",
            "answers of one device and forward pass there, groups of rollout.n of the whole step here",
        ),
        (
            "gradient_accumulation_steps",
            "actor.micro_batch_tokens",
            "micro-batches per step there; here a step is split by tokens, which never changes its gradient",
        ),
        ("num_train_epochs", "trainer.steps", EPOCHS),
        ("max_steps", "trainer.steps", "optimizer steps there, training steps here"),
        ("save_steps", "trainer.checkpoint.every_steps", "steps in both"),
        ("save_total_limit", "trainer.checkpoint.keep_last", "newest checkpoints in both"),
        ("eval_steps", "eval.every_versions", EVALS),
        ("output_dir", "run.dir", "metrics, checkpoints, export and summary are in it"),
        ("report_to", "metrics.sinks", "a list in both; console and metrics.jsonl are always on here"),
        ("max_staleness", "staleness.limit", "weight updates there, versions here"),
        ("weight_sync_steps", "schedule.steps_per_version", "optimizer steps there, training steps here"),
    ),
    "slime": (
        ("n_samples_per_prompt", "rollout.n", SAME),
        ("rollout_batch_size", "schedule.groups_per_step", "prompts of one rollout there, of one step here"),
        ("global_batch_size", "schedule.groups_per_step", "answers per optimizer step there, groups of rollout.n here"),
        ("num_rollout", "trainer.steps", "rollouts there, steps of schedule.groups_per_step groups here"),
        ("rollout_max_response_len", "rollout.max_new_tokens", "tokens in both; one turn of the model here"),
        ("rollout_temperature", "rollout.temperature", SAME),
        ("hf_checkpoint", "model.path", "a directory in Hugging Face form in both"),
        ("prompt_data", "data.train_files", "one file there, a list here"),
        ("input_key", "data.prompt_key", "a column in both"),
        ("n_samples_per_eval_prompt", "eval.n", "answers per held-out prompt in both"),
        ("eval_interval", "eval.every_versions", "rollouts there, versions here"),
        ("save_interval", "trainer.checkpoint.every_steps", "rollouts there, steps here"),
        ("update_weights_interval", "schedule.steps_per_version", "rollouts there, training steps here"),
        ("num_steps_per_rollout", "actor.ppo_mini_batches", "optimizer steps from one rollout there, per pass here"),
        ("max_tokens_per_gpu", "actor.micro_batch_tokens", "tokens of one forward pass in both"),
        ("eps_clip", "actor.clip_ratio", "the same number; with eps_clip_high it is actor.clip_ratio_low"),
        ("eps_clip_high", "actor.clip_ratio_high", SAME),
        ("kl_loss_coef", "algorithm.kl_coef", SAME),
        ("use_tis", "algorithm.correction", "a switch there, a name here: tis"),
        ("tis_clip", "algorithm.correction_cap", SAME),
        ("advantage_estimator", "algorithm.adv_estimator", "by name in both"),
        ("custom_rm_path", "rollout.reward.file", "module.function there, a Python file here"),
        ("rollout_num_gpus_per_engine", "inference.tp", SAME),
    ),
    "NeMo-RL": (
        ("grpo.num_prompts_per_step", "schedule.groups_per_step", "prompts per step in both"),
        ("grpo.num_generations_per_prompt", "rollout.n", SAME),
        ("grpo.max_num_steps", "trainer.steps", "steps in both"),
        ("grpo.max_rollout_turns", "rollout.max_turns", "turns in both"),
        ("grpo.val_period", "eval.every_versions", EVALS),
        ("grpo.use_dynamic_sampling", "algorithm.filter_zero_variance", "a switch in both"),
        (
            "grpo.async_grpo.max_trajectory_age_steps",
            "staleness.limit",
            "training steps there, versions (of schedule.steps_per_version steps) here",
        ),
        ("loss_fn.reference_policy_kl_penalty", "algorithm.kl_coef", SAME),
        ("loss_fn.ratio_clip_min", "actor.clip_ratio_low", SAME),
        ("loss_fn.ratio_clip_max", "actor.clip_ratio_high", SAME),
        ("policy.model_name", "model.path", "a name or path there, a local directory here"),
        ("policy.max_total_sequence_length", "inference.context_length", "tokens of prompt and answer in both"),
        ("checkpointing.save_period", "trainer.checkpoint.every_steps", "steps in both"),
    ),
}

FOREIGN_KEYS: Sequence[ForeignKey] = tuple(
    ForeignKey(system, *row) for system, rows in MappingProxyType(_ROWS).items() for row in rows
)
