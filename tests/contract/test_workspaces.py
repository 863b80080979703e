"""Every workspace of Harbor tasks: commands see what the task put there and nothing else, and leave with it."""

import asyncio
import json
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncrl import waits
from asyncrl.data.harbor_tasks import HarborTask, read_task
from asyncrl.envs.harbor.docker import DockerWorkspace
from asyncrl.envs.harbor.local import LocalWorkspace
from asyncrl.envs.harbor.workspace import MAX_OUTPUT_BYTES, Workspace, WorkspaceError
from asyncrl.envs.resources import Resources
from tests.support.event_loop import in_event_loop
from tests.support.harbor_tasks import namespaces_are_permitted, write_task

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[[HarborTask], Workspace]


pytestmark = pytest.mark.skipif(not namespaces_are_permitted(), reason="the kernel permits no user namespaces here")


@pytest.fixture
def home(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary workspaces and containers lie; the stand-in for docker is on the path."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "docker"
    images = tmp_path_factory.getbasetemp() / "fake_images"
    script = f"{ROOT}/tests/support/fake_docker.py"
    program.write_text(f'#!/bin/sh\nFAKE_IMAGES={images} PYTHONPATH={ROOT} exec {sys.executable} {script} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr("tempfile.tempdir", str(home))
    return home


@pytest.fixture(params=["local", "docker"])
def make(request: pytest.FixtureRequest, home: Path) -> Make:
    resources = Resources()
    makers: dict[str, Make] = {
        "local": lambda task: LocalWorkspace(task, skip_run=False),
        "docker": lambda task: DockerWorkspace(task, "docker", 600.0, resources),
    }
    return makers[request.param]


@asynccontextmanager
async def started(make: Make, directory: Path) -> AsyncIterator[Workspace]:
    workspace = make(read_task(directory))
    try:
        await workspace.start()
        yield workspace
    finally:
        await workspace.close()


def left_in(home: Path) -> list[Path]:
    """Workspaces and containers that are there."""
    return [*home.glob("asyncrl-harbor-*"), *home.glob("fake_docker/containers/*")]


async def said(workspace: Workspace, command: str, timeout_s: float = 20.0) -> str:
    ran = await workspace.run(command, timeout_s, {}, None)
    assert ran.exit_code == 0, ran.output
    return ran.output.strip()


@in_event_loop
async def test_commands_find_what_the_task_says(make: Make, tmp_path: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        assert (
            await said(workspace, "pwd; cat start.txt one.txt deep/two.txt /srv/data/one.txt") == "/app\nstart\n1\n2\n1"
        )
        assert await said(workspace, 'echo "$GREETING, $OTHER"') == "hello, two words"


@in_event_loop
async def test_files_stay_and_other_workspaces_have_their_own(make: Make, tmp_path: Path) -> None:
    directory = write_task(tmp_path)
    async with started(make, directory) as one, started(make, directory) as other:
        await said(one, "mkdir -p /srv/new && echo 7 > answer.txt && echo 8 > /srv/new/x")
        assert await said(one, "cat answer.txt /srv/new/x; rm start.txt") == "7\n8"
        assert await said(other, "ls /app") == "deep\none.txt\nstart.txt"
    assert (directory / "environment/start.txt").exists()


@in_event_loop
async def test_an_exit_code_is_told_and_both_streams_are(make: Make, tmp_path: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        ran = await workspace.run("echo out; echo err >&2; exit 7", 20.0, {}, None)
        assert (sorted(ran.output.split()), ran.exit_code) == (["err", "out"], 7)


@in_event_loop
async def test_variables_are_given_for_one_command_and_ours_are_not(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-our-own-secret")
    async with started(make, write_task(tmp_path)) as workspace:
        ran = await workspace.run("env", 20.0, {"GIVEN": "it's"}, None)
        assert "GIVEN=it's" in ran.output.splitlines()
        assert "sk-our-own-secret" not in ran.output
        assert "GIVEN" not in (await workspace.run("env", 20.0, {}, None)).output


@in_event_loop
async def test_a_command_that_does_not_end_is_killed_with_what_it_started(make: Make, tmp_path: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        ran = await workspace.run("echo begun; (sleep 1; echo late > /app/late) & sleep 60", 0.7, {}, None)
        assert (ran.output.strip(), ran.exit_code) == ("begun", None)
        assert await said(workspace, "sleep 1; ls /app") == "deep\none.txt\nstart.txt"


@in_event_loop
async def test_a_long_output_is_cut_in_the_middle(make: Make, tmp_path: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        ran = await workspace.run(
            f"echo first; head -c {3 * MAX_OUTPUT_BYTES} /dev/zero | tr '\\0' x; echo; echo last", 20.0, {}, None
        )
        assert ran.output.startswith("first\n")
        assert ran.output.endswith("last\n")
        assert f"[{2 * MAX_OUTPUT_BYTES + len('firstlast') + 3} bytes left out]" in ran.output
        assert len(ran.output) < MAX_OUTPUT_BYTES + 100


@in_event_loop
async def test_a_directory_is_put_in_place_of_what_is_there(make: Make, tmp_path: Path) -> None:
    directory = write_task(tmp_path)
    async with started(make, directory) as workspace:
        await said(
            workspace,
            "mkdir -p /tests /logs/verifier; echo planted > /tests/test.sh; echo 1 > /logs/verifier/reward.txt",
        )
        await workspace.put(directory / "tests", "/tests")
        await workspace.put(None, "/logs/verifier")
        assert await said(workspace, "ls /tests /logs/verifier; head -1 /tests/test.sh") == (
            "/logs/verifier:\n\n/tests:\ntest.sh\n#!/bin/bash"
        )


@in_event_loop
async def test_a_link_out_of_the_workspace_is_neither_read_nor_written_through(
    make: Make, tmp_path: Path, home: Path
) -> None:
    outside = home / "outside"
    (outside / "verifier").mkdir(parents=True)
    (outside / "secret").write_text("ours")
    directory = write_task(tmp_path)
    async with started(make, directory) as workspace:
        await said(
            workspace,
            f"rm -rf /logs /etc /dev; ln -s {outside} /logs; ln -s {outside} /etc; ln -s {outside}/secret /app/x",
        )
        await workspace.put(directory / "tests", "/logs/verifier")
        assert await workspace.read("/app/x", 100) is None
        assert await said(workspace, "cat /logs/verifier/test.sh | head -1; echo > /dev/null") == "#!/bin/bash"
    assert sorted(path.name for path in outside.iterdir()) == ["secret", "verifier"]
    assert list((outside / "verifier").iterdir()) == []


@in_event_loop
async def test_a_file_is_read_up_to_a_limit_and_what_is_no_file_is_none(make: Make, tmp_path: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        await said(workspace, "printf 0123456789 > /app/x; mkfifo /app/pipe")
        assert await workspace.read("/app/x", 4) == b"0123"
        assert [await workspace.read(place, 4) for place in ("/app/none", "/app/pipe", "/app")] == [None, None, None]


@in_event_loop
async def test_nothing_is_left_of_it(make: Make, tmp_path: Path, home: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        await said(
            workspace, "mkdir /app/locked && echo 1 > /app/locked/x && chmod 000 /app/locked/x && chmod 500 /app/locked"
        )
    assert left_in(home) == []
    with pytest.raises(WorkspaceError, match="is not there"):
        await workspace.run("true", 1.0, {}, None)


@in_event_loop
async def test_a_place_that_cannot_be_made_says_why_and_leaves_nothing(make: Make, tmp_path: Path, home: Path) -> None:
    directory = write_task(tmp_path, dockerfile="FROM x\nCOPY absent.txt .\n")
    with pytest.raises(WorkspaceError, match=r"Dockerfile line 2: COPY absent.txt: there is no such file"):
        async with started(make, directory):
            pass
    assert left_in(home) == []


@in_event_loop
async def test_a_command_that_is_cancelled_is_killed(make: Make, tmp_path: Path, home: Path) -> None:
    async with started(make, write_task(tmp_path)) as workspace:
        running = asyncio.create_task(workspace.run("touch /app/begun; sleep 60; touch /app/ended", 60.0, {}, None))
        await waits.until(
            "test", lambda: list(home.rglob("app/begun")) or None, why=lambda: "", deadline_s=20.0, recheck_s=0.05
        )
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await said(workspace, "ls /app/begun /app/ended 2>&1 | wc -l") == "2"


@in_event_loop
async def test_the_local_runner_hides_this_machine(home: Path, tmp_path: Path) -> None:
    (home / "secret").write_text("ours")
    async with started(lambda task: LocalWorkspace(task, skip_run=False), write_task(tmp_path)) as workspace:
        ran = await workspace.run(f"cat {home}/secret /etc/shadow; ls /root /home; ps ax | wc -l", 20.0, {}, None)
        assert "ours" not in ran.output
        assert ran.output.count("No such file") >= 2
        assert int(ran.output.split()[-1]) < 10, "processes of this machine are not seen"
        probe = "import socket; socket.create_connection(('127.0.0.1', 1), 1)"
        assert "Network is unreachable" in (await workspace.run(f'python3 -c "{probe}"', 20.0, {}, None)).output
        for attempt in (
            "touch /usr/x",
            "mount -o remount,rw /usr",
            "unshare -U true",
            "mknod /dev/sda b 8 0",
            "chroot /app ls",
        ):
            assert (await workspace.run(attempt, 20.0, {}, None)).exit_code != 0, attempt


@in_event_loop
async def test_the_local_runner_bounds_memory_and_files(home: Path, tmp_path: Path) -> None:
    async with started(lambda task: LocalWorkspace(task, skip_run=False), write_task(tmp_path)) as workspace:
        hungry = await workspace.run("python3 -c 'x = bytearray(3 << 30)'", 20.0, {}, None)
        assert "MemoryError" in hungry.output
        full = await workspace.run("head -c 100000000 /dev/zero > /app/big; stat -c %s /app/big", 20.0, {}, None)
        assert int(full.output.split()[-1]) == 64 << 20


@in_event_loop
async def test_a_program_that_the_agent_put_in_place_of_ours_is_gone_with_the_next_command(
    home: Path, tmp_path: Path
) -> None:
    async with started(lambda task: LocalWorkspace(task, skip_run=False), write_task(tmp_path)) as workspace:
        await said(workspace, "rm /bin; mkdir /bin; printf '#!/usr/bin/bash\\necho mine' > /bin/cat; chmod +x /bin/cat")
        assert await said(workspace, "/bin/cat start.txt") == "start"


@in_event_loop
async def test_an_image_is_built_once_and_limits_are_passed_on(home: Path, tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path, environment="allow_internet = false\nworkdir = '/srv'"))
    resources = Resources()
    workspaces = [DockerWorkspace(task, "docker", 600.0, resources) for _ in range(3)]
    await asyncio.gather(*(workspace.start() for workspace in workspaces))
    ran = await workspaces[0].run("pwd; echo $TOKEN", 5.0, {"TOKEN": "sk-given"}, 0)
    assert ran.output == "/srv\nsk-given\n"
    for workspace in workspaces:
        await workspace.close()
    calls = [json.loads(line) for line in (home / "fake_docker/calls").read_text().splitlines()]
    assert [name for name, *_ in calls].count("build") == 1
    run = next(call for call in calls if call[0] == "run")
    for option in (["--network", "none"], ["--cpus", "1"], ["--memory", "2048m"], ["--pids-limit", "1024"]):
        assert option[1] == run[run.index(option[0]) + 1]
    assert run[-2:] == ["sleep", "600"]
    assert not any("sk-given" in word for call in calls for word in call), "values are on no command line"


@in_event_loop
async def test_a_docker_that_is_not_there_or_has_no_image_says_so(home: Path, tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path, environment="docker_image = 'somewhere/absent:1'"))
    workspace = DockerWorkspace(task, "docker", 600.0, Resources())
    with pytest.raises(WorkspaceError, match=r"docker run: exit code 125: Unable to find image 'somewhere/absent:1'"):
        await workspace.start()
    await workspace.close()
    shutil.rmtree(home / "bin")
    missing = DockerWorkspace(task, str(home / "bin/docker"), 600.0, Resources())
    with pytest.raises(WorkspaceError, match="cannot be started: No such file"):
        await missing.start()
    await missing.close()
