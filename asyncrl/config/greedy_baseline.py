"""Which runs play one more episode of each prompt, greedily, as the baseline of the others.

The rollout cluster has to know it and loads no tensors, and the rows of asyncrl.algorithms are made of them. So their
column `baselines_B` is said here once more, and tests/contract/test_greedy_baseline.py holds the two to each other.
"""

from asyncrl.config.trainer import AlgorithmConfig

ESTIMATORS = frozenset({"remax"})
"""Rows of asyncrl.algorithms.ALGORITHMS whose advantage looks at `baselines_B`."""


def plays_greedy_baseline(algorithm: AlgorithmConfig) -> bool:
    """Whether the advantages of this section are measured from the reward of a greedy answer."""
    return (algorithm.name if algorithm.adv_estimator is None else algorithm.adv_estimator) in ESTIMATORS
