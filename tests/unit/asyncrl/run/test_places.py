"""The place of a serve-rollout among those of its run on this machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.errors import PreflightError
from asyncrl.run import places
from asyncrl.run.places import own_place
from asyncrl.run.server_parts import server_name


def test_each_has_the_lowest_free_number_and_gives_it_back(tmp_path: Path) -> None:
    with own_place(tmp_path) as first, own_place(tmp_path) as second:
        assert (first, second) == (0, 1)
        with own_place(tmp_path / "other") as elsewhere:
            assert elsewhere == 0
    with own_place(tmp_path) as again:
        assert again == 0


def test_a_killed_one_leaves_its_number(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from asyncrl.run.places import own_place\n"
        "with own_place(pathlib.Path(sys.argv[1])) as place: print(place, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"0\n"
    with own_place(tmp_path) as place:
        assert place == 1
    holder.kill()
    holder.wait()
    with own_place(tmp_path) as place:
        assert place == 0


def test_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST", 1)
    with own_place(tmp_path), pytest.raises(PreflightError, match="1 serve-rollout"), own_place(tmp_path):
        pass


def test_servers_of_two_on_one_machine_have_other_names() -> None:
    names = {server_name(0), server_name(0, place=1), server_name(1, place=1), server_name(0, kind="adopted")}
    assert len(names) == 4
    assert server_name(0).endswith("-server-0")
