"""Which limit, which policy, how many devices on which side: two clusters simulated with the speeds of a run.

`fit` reads a run directory, `simulator` plays it again under other settings, `search` tries many, `recommend` takes
one. Nothing in here talks to a cluster, and the simulator is pure: the same profile, setting and seed give the same
numbers. The rules of staleness are the product's own (`buffer.staleness`), not a copy of them.
"""
