"""Explicit-state models of the protocols: what they are for and how to explore a change stands in README.md."""
