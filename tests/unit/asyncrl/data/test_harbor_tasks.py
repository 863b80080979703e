"""Harbor task directories: read as they are written; refused by file and key where they ask for what is not there."""

from pathlib import Path

import pytest

from asyncrl.data.harbor_tasks import read_task, task_directories
from asyncrl.errors import DataError
from tests.support.harbor_tasks import write_task


def test_a_task_is_read(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path, environment="allow_internet = false\n[environment.env]\nA = '${KEY:-x}'"))
    assert task.name == "make-a-file"
    assert task.instruction == "Write 42 to the file answer.txt."
    assert (task.verifier.timeout_sec, task.agent.timeout_sec) == (30.0, 120.0)
    assert (task.environment.cpus, task.memory_mb, task.environment.storage_mb) == (1.0, 2048.0, 64.0)
    assert (task.has_network, task.environment.env) == (False, {"A": "${KEY:-x}"})
    assert task.dockerfile == task.directory / "environment/Dockerfile"


@pytest.mark.parametrize(
    ("text", "memory_mb", "storage_mb"),
    [
        ('memory = "2G"\nstorage = "512M"', 2048.0, 512.0),
        ('memory = "1.5 gb"', 1536.0, None),
        ("memory_mb = 100", 100.0, None),
        ("", None, None),
    ],
)
def test_older_sizes_have_units(tmp_path: Path, text: str, memory_mb: float | None, storage_mb: float | None) -> None:
    directory = write_task(tmp_path)
    (directory / "task.toml").write_text(f"version = '1.0'\n[environment]\n{text}\n")
    task = read_task(directory)
    assert task.memory_mb == memory_mb
    assert (task.environment.storage_mb or task.environment.storage) == storage_mb


@pytest.mark.parametrize(("mode", "has_network"), [("public", True), ("no-network", False)])
def test_the_mode_of_the_network_wins_over_the_older_key(tmp_path: Path, mode: str, has_network: bool) -> None:
    text = f"allow_internet = {str(not has_network).lower()}\nnetwork_mode = '{mode}'"
    assert read_task(write_task(tmp_path, environment=text)).has_network is has_network


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ("[environment.healthcheck]\ncommand = 'true'", "environment.healthcheck asks for a health check"),
        ("gpus = 1", "environment.gpus asks for GPUs"),
        ("[[environment.mcp_servers]]\nname = 'x'", "environment.mcp_servers asks for MCP servers"),
        ("[[steps]]\nname = 'one'", "steps asks for a task of several steps"),
        ("os = 'windows'", r"environment.os = 'windows': .*'linux'"),
        ("network_mode = 'allowlist'", r"environment.network_mode = 'allowlist'"),
        ("workdir = 'app'", r"environment.workdir = 'app'"),
        ("memory = 'much'", r"environment.memory = 'much': .*no size such as 2G"),
        ("build_timeout_sec", r"cannot be read: .*line 2[0-9]"),
    ],
)
def test_what_is_not_supported_or_wrong_is_refused_by_file_and_key(tmp_path: Path, environment: str, says: str) -> None:
    directory = write_task(tmp_path, environment=environment)
    with pytest.raises(DataError, match=says):
        read_task(directory)


def test_nothing_that_is_zero_or_empty_is_refused(tmp_path: Path) -> None:
    assert read_task(write_task(tmp_path, environment="gpus = 0\nmcp_servers = []")).name == "make-a-file"


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("task.toml", "is no Harbor task: .*task.toml does not exist"),
        ("instruction.md", "is no Harbor task: .*instruction.md does not exist"),
        ("tests/test.sh", r"has no tests/test.sh: nothing would decide"),
    ],
)
def test_a_file_that_is_missing_is_named(tmp_path: Path, file: str, says: str) -> None:
    directory = write_task(tmp_path)
    (directory / file).unlink()
    with pytest.raises(DataError, match=says):
        read_task(directory)


def test_an_empty_instruction_several_containers_and_a_verifier_of_its_own_are_refused(tmp_path: Path) -> None:
    empty = write_task(tmp_path, "empty")
    (empty / "instruction.md").write_text(" \n")
    composed = write_task(tmp_path, "composed")
    (composed / "environment/docker-compose.yaml").write_text("services: {}")
    separate = write_task(tmp_path, "separate")
    (separate / "task.toml").write_text("[verifier]\nenvironment_mode = 'separate'\n")
    for directory, says in (
        (empty, "instruction.md is empty"),
        (composed, "several containers"),
        (separate, "verifier.environment_mode = 'separate'"),
    ):
        with pytest.raises(DataError, match=says):
            read_task(directory)


def test_directories_are_found_in_order_however_deep(tmp_path: Path) -> None:
    found = [write_task(tmp_path / "set", name) for name in ("b", "a", "c/d")]
    assert task_directories(tmp_path) == sorted(found)
    assert task_directories(found[0]) == [found[0]]
    with pytest.raises(DataError, match=r"holds no Harbor task: no task.toml"):
        task_directories(found[0] / "tests")
    with pytest.raises(DataError, match="is no directory"):
        task_directories(tmp_path / "absent")
