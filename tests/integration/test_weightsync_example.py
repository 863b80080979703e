"""The example of weightsync/README.md, as it stands there: a server follows a trainer to its last version."""

import os
import re
import subprocess
import sys
from pathlib import Path

from weightsync.log import open_log
from weightsync.versions import pack

ROOT = Path(__file__).resolve().parents[2]


def example() -> str:
    readme = (ROOT / "weightsync/README.md").read_text()
    (block,) = [text for text in re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S) if "def train(" in text]
    return block


def test_the_example_follows_the_trainer_and_imports_nothing_of_asyncrl(tmp_path: Path) -> None:
    script, home = tmp_path / "example.py", tmp_path / "run"
    script.write_text(example() + "assert not {'asyncrl', 'buffer'} & sys.modules.keys()\n")
    done = subprocess.run(
        [sys.executable, str(script), str(home), "3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    printed = re.findall(r"^version (\S+): (\d+) weights changed, row 1 is 1$", done.stdout, re.M)
    assert printed[-1][0] == "1.3"
    assert sum(int(changed) for _, changed in printed) == 3 * 64
    log = open_log(str(home / "log"), "demo")
    ack = log.acks()["server"]
    assert (ack.version, ack.state) == (pack(1, 3), "serving")
    assert ack.digest == log.digest_of(pack(1, 3))
