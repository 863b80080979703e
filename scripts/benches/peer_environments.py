"""Environments of the programs that ours is compared with: made once under .venv-peers/, from peers/*.txt."""

import shutil
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent / "peers"
HOME = SCRIPTS.parents[2] / ".venv-peers"
PYTHON = "python3.11"
"""The last release of Reverb is for Python 3.11 at most."""


def environment(peer: str) -> Path:
    """The Python of a peer's environment, made first if its requirements are not what they were.

    Raises:
        RuntimeError: there is no PYTHON to make it with.
    """
    wanted, home = (SCRIPTS / f"{peer}.txt").read_text(), HOME / peer
    python, stamp = home / "bin" / "python", home / "stamp"
    if not (stamp.exists() and stamp.read_text() == wanted):
        base = shutil.which(PYTHON)
        if base is None:
            raise RuntimeError(f"--peers needs {PYTHON} on PATH for the environment of {peer}, and there is none.")
        print(f"peers: making {home}, some minutes and up to 2 GB", file=sys.stderr)
        subprocess.run([base, "-m", "venv", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(SCRIPTS / f"{peer}.txt")], check=True)
        stamp.write_text(wanted)
    return python
