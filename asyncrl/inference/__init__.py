"""Inference servers: the client of their HTTP protocol, their life, and a local engine that speaks it.

Importing this package imports nothing else: the rollout side reads `protocol` and `client` without torch, and only
the process of a local server loads `local_engine`.
"""
