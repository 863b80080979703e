"""The program that confines code, started by a user that is not root, as it is on most machines."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.envs.tools.python import cell, confine

PYTHON = Path("/usr/bin/python3")
USER = 61234

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None or not PYTHON.exists(),
    reason="only root can become another user, who needs a Python that all can read",
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all can read, with both programs, and one of the user's own."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    for program in (cell, confine):
        assert program.__file__ is not None
        (made / Path(program.__file__).name).write_text(Path(program.__file__).read_text())
    (made / "home").mkdir()
    os.chown(made / "home", USER, USER)
    yield made
    shutil.rmtree(made)


def answers(folder: Path, *pieces: str, namespaces: bool) -> tuple[bool, str]:
    """Run pieces of code as the user. Returns whether it was cut off from the machine, and what was printed."""
    ours, theirs = socket.socketpair()
    orders = {
        "descriptor": theirs.fileno(),
        "home": str(folder / "home"),
        "python": str(PYTHON),
        "cell": str(folder / "cell.py"),
        "visible": ["/usr"],
        "namespaces": namespaces,
        "required": False,
        "cpu_s": 10,
        "memory_bytes": 256 << 20,
        "file_bytes": 1 << 20,
        "processes": 5,
    }
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    command = [*as_user, str(PYTHON), "-I", "-S", str(folder / "confine.py"), json.dumps(orders)]
    with (
        subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        ) as process,
        ours,
    ):
        theirs.close()
        ours.settimeout(60)
        with ours.makefile("rb") as lines:
            isolated = bool(json.loads(lines.readline())["isolated"])
            assert lines.readline() == b"ready\n"
            for piece in pieces:
                ours.sendall(len(piece.encode()).to_bytes(4, "little") + piece.encode())
                assert lines.readline() == b"ok\n"
        ours.shutdown(socket.SHUT_RDWR)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    return isolated, printed


FORKS = """
import os, time
made = 0
for _ in range(100):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
    made += 1
print(made)
"""
RIGHTS = "print(*{line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapBnd'))})"


@pytest.mark.parametrize("namespaces", [True, False])
def test_an_ordinary_user_is_held_to_the_limits_and_leaves_nothing(folder: Path, namespaces: bool) -> None:
    _, printed = answers(folder, "import os; os.getuid()", FORKS, namespaces=namespaces)
    user, made = printed.split()
    assert int(user) == USER
    assert 0 < int(made) <= 7
    left = [path for path in Path("/proc").glob("[0-9]*") if _owner(path) == USER]
    assert left == []


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1


def test_a_user_with_a_namespace_of_its_own_has_no_rights_in_it(folder: Path) -> None:
    looks = "import os; os.path.exists('/root'), os.listdir('/code')"
    isolated, printed = answers(folder, RIGHTS, looks, namespaces=True)
    if not isolated:
        pytest.skip("the kernel permits users no namespaces")
    assert printed == "0000000000000000\n(False, [])\n"
