"""What whole runs need once: the tiny model and its data."""

import pytest

from asyncrl import cli
from tests.support.commands import CONFIG, ROOT


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The model and data of configs/tiny_cpu.yaml, made where the file says, if they are missing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert cli.main(["starter", str(CONFIG)]) == 0
