"""The scripts of a scheduler run as it runs them: signals are handed on, and a job is queued again where it should."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from asyncrl.launch import TARGETS, render
from asyncrl.load_config import load
from tests.unit.asyncrl.launch.test_launch import CONFIG, LARGE, SHARED

POLITE = 'trap \'echo told $0 >> "$HERE/calls"; exit 0\' TERM USR1\ntouch "$HERE/up"\nwhile :; do sleep 0.05; done\n'


class Site:
    """A folder of programs that write down how they are called, first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.run_dir.mkdir()
        self.env = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HERE": str(folder),
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": "4321",
            "ASYNCRL_REDIS_URL": "redis://10.0.0.9",
            "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
            "SKYPILOT_NODE_RANK": "0",
        }
        for name in ("asyncrl", "scontrol", "ray", "srun"):
            self.program(name, "exit 0\n")

    def program(self, name: str, code: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "$HERE/calls"\n{code}')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def start(self, text: str) -> subprocess.Popen[bytes]:
        script = self.folder / "script.sh"
        script.write_text(text)
        shell = text.splitlines()[0].removeprefix("#!") if text.startswith("#!") else "bash"
        return subprocess.Popen([shell, str(script)], env=self.env, cwd=self.folder)

    def until_up(self) -> None:
        while not (self.folder / "up").exists():
            os.sched_yield()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def slurm(site: Site, side: str, *overrides: str) -> str:
    loaded = load(CONFIG, [*SHARED, *overrides, f"run.dir={site.run_dir}"])
    return render(TARGETS["slurm"], loaded)[f"{side}.sbatch"]


@pytest.mark.parametrize(
    ("code", "requeued", "exit_code"), [(75, True, 0), (0, False, 0), (2, False, 2), (7, False, 7)]
)
def test_slurm_queues_a_job_again_that_waited_in_vain_and_no_other(
    site: Site, code: int, requeued: bool, exit_code: int
) -> None:
    site.program("asyncrl", f"exit {code}\n")
    assert site.start(slurm(site, "trainer")).wait(60) == exit_code
    assert site.calls() == ["asyncrl train run.yaml --resume", *(["scontrol requeue 4321"] if requeued else [])]


@pytest.mark.parametrize(("side", "finished"), [("trainer", False), ("rollout", False), ("trainer", True)])
def test_slurms_notice_is_handed_on_and_the_job_queued_again_unless_the_run_is_finished(
    site: Site, side: str, finished: bool
) -> None:
    site.program("asyncrl", POLITE)
    if finished:
        (site.run_dir / "outcome.json").write_text('{"reason": "finished", "step": 9, "version": "1.9"}\n')
    job = site.start(slurm(site, side))
    site.until_up()
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == 0
    told = [call for call in site.calls() if call.startswith("told")]
    assert len(told) == 1
    assert ("scontrol requeue 4321" in site.calls()) is not finished


def test_slurm_on_several_machines_starts_ray_first_and_ends_it_last(site: Site) -> None:
    site.program("asyncrl", 'until grep -q "^srun" "$HERE/calls"; do sleep 0.05; done\n')  # the others join meanwhile
    assert site.start(slurm(site, "trainer", *LARGE[len(SHARED) :])).wait(60) == 0
    calls = site.calls()
    assert calls[0].startswith("ray start --head ")
    address = next(call for call in calls if call.startswith("asyncrl")).rpartition(" ")[2]
    assert f"asyncrl train run.yaml --resume --ray-address {address}" in calls
    (srun,) = [call for call in calls if call.startswith("srun")]
    assert "--nodes=1 " in srun
    assert f"ray start --address={address} --num-cpus=32 --num-gpus=8 --block" in srun
    assert calls[-1].startswith("ray stop")


def sky_run(side: str) -> str:
    files = render(TARGETS["skypilot"], load(CONFIG, [*LARGE]))
    return str(yaml.safe_load(files[f"{side}.yaml"])["run"])


def test_skypilots_first_machine_runs_the_command_and_gives_its_exit_code(site: Site) -> None:
    site.program("asyncrl", "exit 75\n")
    assert site.start(sky_run("trainer")).wait(60) == 75
    calls = site.calls()
    assert calls[0].startswith("ray start --head --node-ip-address=10.0.0.4 --port=6399 ")
    assert calls[1] == "asyncrl train /tmp/asyncrl/run.yaml --resume --ray-address 10.0.0.4:6399"
    assert calls[2].startswith("ray stop")


def test_skypilots_other_machines_wait_for_the_first_and_end_with_it(site: Site) -> None:
    site.env["SKYPILOT_NODE_RANK"] = "1"
    site.program("ray", '[ "$1" != start ] || exit 1\n')  # its head is gone when the command has ended
    assert site.start(sky_run("rollout")).wait(60) == 0
    assert [call.split()[1] for call in site.calls()] == ["health-check", "start"]


def test_a_pod_that_ends_waits_until_the_command_has_left(site: Site) -> None:
    loaded = load(CONFIG, list(SHARED))
    config = next(yaml.safe_load_all(render(TARGETS["kuberay"], loaded, ["image=x:1"])["rollout.yaml"]))
    scripts = {name: text.replace("/tmp/asyncrl.pid", f"{site.folder}/pid") for name, text in config["data"].items()}
    site.program("asyncrl", POLITE)
    command = site.start(scripts["run.sh"])
    site.until_up()
    # The pod's own shell would collect the ended command; here the test does, while the hook waits for it.
    hook = subprocess.Popen(["sh", "-c", scripts["stop.sh"]], env=site.env)
    assert command.wait(60) == 0
    assert hook.wait(60) == 0
    assert site.calls()[0] == "asyncrl serve-rollout /etc/asyncrl/run.yaml --ray-address auto"
    assert site.calls()[1].startswith("told")
