"""Which runs leave groups without a difference in reward out, and have workers play another prompt in their place.

The rollout cluster has to know it and loads no tensors, and the rows of asyncrl.algorithms are made of them. So their
field `filter_zero_variance` is said here once more, and tests/contract/test_dynamic_sampling.py holds the two to each
other.
"""

from asyncrl.config.trainer import AlgorithmConfig

ZERO_VARIANCE = "zero_variance"
"""The ledger's reason for a group that is filtered."""

FILTERING = frozenset({"dapo"})
"""Rows of asyncrl.algorithms.ALGORITHMS whose `filter_zero_variance` is True."""


def filters_zero_variance(algorithm: AlgorithmConfig) -> bool:
    """Whether a group whose rewards are all equal is not handed in."""
    asked = algorithm.filter_zero_variance
    return algorithm.name in FILTERING if asked is None else asked
