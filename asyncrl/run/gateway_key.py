"""The key of a run's gateway: the user's, from the environment, or one that is made once and kept for this user."""

import os
import secrets
from pathlib import Path

KEY_VARIABLE = "ASYNCRL_GATEWAY_KEY"
"""Set where `asyncrl gateway` and the runners of harnesses are started."""


def gateway_key(directory: Path) -> tuple[str, str]:
    """The key, and where it is from, for people: that is no secret.

    Args:
        directory: of the run; an own key is made there on the first call.
    """
    if given := os.environ.get(KEY_VARIABLE):
        return given, f"of the environment variable {KEY_VARIABLE}"
    path = directory / "gateway" / "key"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if kept := path.read_text().strip():
            return kept, f"in {path}"
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)  # its writer died before it wrote
    made = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(made)
    return made, f"in {path}"
