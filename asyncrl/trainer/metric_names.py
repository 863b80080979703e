"""What metrics are called in a metrics line: verl's names where the meaning is the same, ours where it is not."""

from collections.abc import Mapping

VERL: Mapping[str, str] = {
    "loss/policy": "actor/pg_loss",
    "loss/kl": "actor/kl_loss",
    "loss/entropy": "actor/entropy_loss",
    "loss/distill": "actor/distill_loss",
    "loss/total": "actor/loss",
    "entropy": "actor/entropy",
    "kl": "actor/kl_to_reference",
    "distill_kl": "actor/distill_kl",
    "distill_frac": "actor/distill_frac",
    "approx_kl": "actor/ppo_kl",
    "clip_frac": "actor/pg_clipfrac",
    "clip_frac_lower": "actor/pg_clipfrac_lower",
    "nonfinite_tokens": "actor/nonfinite_tokens",
    "selected_frac": "actor/selected_frac",
    "mismatch/kl_rollout_train": "rollout_corr/kl",
    "mismatch/k3_rollout_train": "rollout_corr/k3_kl",
    "mismatch/train_ppl": "rollout_corr/training_ppl",
    "mismatch/train_log_ppl": "rollout_corr/training_log_ppl",
    "weights/ess": "rollout_corr/rollout_is_eff_sample_size",
    "weights/frac_high": "rollout_corr/rollout_is_ratio_fraction_high",
    "weights/frac_low": "rollout_corr/rollout_is_ratio_fraction_low",
    "reject/token_frac": "rollout_corr/rollout_rs_masked_fraction",
    "reject/seq_frac": "rollout_corr/rollout_rs_seq_masked_fraction",
    "prob_diff/pearson": "training/rollout_actor_probs_pearson_corr",
}
PREFIXES: Mapping[str, str] = {
    "mismatch/": "rollout_corr/",
    "weights/": "rollout_corr/rollout_is_",
    "prob_diff/": "training/rollout_probs_diff_",
}


def renamed(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a step under the names that people read."""
    return {_renamed(name): value for name, value in values.items()}


def _renamed(name: str) -> str:
    if name in VERL:
        return VERL[name]
    for prefix, ours in PREFIXES.items():
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name
