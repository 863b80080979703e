"""Assemble the parts for `train` and `serve-rollout`, watch them, stop them in order."""
