"""The bearer key of the servers, from the environment: a configuration file is copied into run directories."""

import os

KEY_VARIABLE = "ASYNCRL_SERVER_KEY"
"""Set for serve-rollout (and eval): servers that it starts ask for the key, and every call to a server carries it."""


def server_key() -> str | None:
    """The key, None where none is set."""
    return os.environ.get(KEY_VARIABLE) or None
