"""Asynchronous, disaggregated reinforcement-learning post-training of language models."""

OWNER = "asyncrl"
__version__ = "0.1.0"
