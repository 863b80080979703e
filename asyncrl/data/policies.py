"""Names of the policies whose episodes travel in a group, in `Trajectory.policy`."""

SAMPLED = "policy"
"""Sampled from the policy that is trained: what enters the loss."""
GREEDY_BASELINE = "greedy_baseline"
"""The likeliest tokens of the same policy: its reward is the baseline of the others, and no token of it is trained."""
