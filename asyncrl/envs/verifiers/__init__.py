"""Environments of the library verifiers: played in a process of their own, whose dependencies need not fit ours."""
