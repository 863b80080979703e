"""What is written for schedulers: it parses, has the fields that matter there, and holds no secret."""

import argparse
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl import cli
from asyncrl.commands import launch
from asyncrl.errors import ConfigError
from asyncrl.launch import TARGETS, render
from asyncrl.launch.job import SERVER_KEY
from asyncrl.load_config import SECRET_VARIABLES, LoadedConfig, load

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "launch.md").read_text()
CONFIG = Path(__file__).resolve().parents[4] / "configs" / "tiny_cpu.yaml"
SHARED = (
    "run.dir=/shared/runs/demo",
    "run.name=Demo_1",
    "model.path=/shared/model",
    "data.train_files=[/shared/train.parquet]",
    "data.val_files=[]",
)
LARGE = (*SHARED, "trainer.parallel.fsdp=16", "inference.engine=sglang", "inference.servers=6", "inference.tp=4")
IMAGE = ("image=registry/asyncrl:1",)
SKY_KEYS = {"name", "workdir", "num_nodes", "resources", "envs", "secrets", "file_mounts", "volumes", "setup", "run"}
SKY_RESOURCES = {"infra", "accelerators", "cpus", "memory", "image_id", "use_spot", "job_recovery"}


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in SECRET_VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def loaded(*overrides: str) -> LoadedConfig:
    return load(CONFIG, overrides)


def files(target: str, *overrides: str, given: tuple[str, ...] = ()) -> dict[str, str]:
    return render(TARGETS[target], loaded(*overrides), (*IMAGE, *given) if target == "kuberay" else given)


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def check_shell(text: str, shell: str = "bash") -> None:
    done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("overrides", [SHARED, LARGE, (*LARGE, "mode=sync")])
def test_no_secret_is_written_and_the_configuration_is_the_same_without_them(
    target: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    secrets = ("buffer.url=redis://u:geheim@10.0.0.9", "weightsync.key=geheim geheim geheim")
    made = files(target, *overrides, *secrets)
    assert all("geheim" not in text for text in made.values())
    sides = {"trainer"} if "mode=sync" in overrides else {"trainer", "rollout"}
    assert {name.partition(".")[0] for name in made} - {"run"} == sides
    for name, text in made.items():
        if name != "run.yaml":
            assert "ASYNCRL_REDIS_URL" in text
    if target == "kuberay":
        (text,) = {documents(text)[0]["data"]["run.yaml"] for text in made.values()}
    else:
        text = made["run.yaml"]
    (tmp_path / "run.yaml").write_text(text)
    again = load(tmp_path / "run.yaml").config
    want = loaded(*overrides, "inference.host=10.0.0.0/8").config
    assert again.model_dump(exclude={"schedule", "staleness"}) == want.model_dump(exclude={"schedule", "staleness"})
    assert (again.plan, again.staleness.policy) == (want.plan, want.staleness.policy)


def test_kuberay_runs_each_side_on_a_cluster_of_its_own() -> None:
    made = files("kuberay", *LARGE, given=("namespace=rl", "claim=models"))
    for name, nodes, command, notice in (
        ("trainer", 2, "train /etc/asyncrl/run.yaml --ray-address auto --resume", "TERM"),
        ("rollout", 3, "serve-rollout /etc/asyncrl/run.yaml --ray-address auto", "USR1"),
    ):
        config, job = documents(made[f"{name}.yaml"])
        assert (config["kind"], job["kind"], job["apiVersion"]) == ("ConfigMap", "RayJob", "ray.io/v1")
        assert job["metadata"]["name"] == config["metadata"]["name"] == f"demo-1-{name}"
        assert job["metadata"]["namespace"] == "rl"
        scripts = config["data"]
        assert f"keep asyncrl {command}" in scripts["run.sh"]
        assert f"kill -{notice} " in scripts["stop.sh"]
        check_shell(scripts["run.sh"], "sh")
        check_shell(scripts["stop.sh"], "sh")
        cluster = job["spec"]["rayClusterSpec"]
        assert cluster["authOptions"] == {"mode": "token"}
        head = cluster["headGroupSpec"]
        (group,) = cluster["workerGroupSpecs"]
        for spec in (head, group):
            assert all(isinstance(value, str) for value in spec["rayStartParams"].values()), "as Ray's operator asks"
        assert head["rayStartParams"]["num-cpus"] == "0"
        pod = head["template"]["spec"]
        grace_s = pod["terminationGracePeriodSeconds"]
        assert grace_s > (120 if name == "trainer" else 60)
        (container,) = pod["containers"]
        variables = {row["name"]: row for row in container["env"]}
        assert variables["RAY_JOB_STOP_WAIT_TIME_S"]["value"] == str(grace_s)
        reference = {"name": "asyncrl", "key": "ASYNCRL_REDIS_URL", "optional": False}
        assert variables["ASYNCRL_REDIS_URL"]["valueFrom"] == {"secretKeyRef": reference}
        assert {group[name] for name in ("replicas", "minReplicas", "maxReplicas")} == {nodes}
        (worker,) = group["template"]["spec"]["containers"]
        assert worker["image"] == "registry/asyncrl:1"
        assert worker["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert {mount["mountPath"] for mount in worker["volumeMounts"]} == {"/shared", "/dev/shm", "/etc/asyncrl"}
        volumes = group["template"]["spec"]["volumes"]
        assert {"name": "shared", "persistentVolumeClaim": {"claimName": "models"}} in volumes


def test_without_devices_none_is_asked_for() -> None:
    trainer = documents(files("kuberay", *SHARED, "trainer.device=cpu")["trainer.yaml"])[1]
    (group,) = trainer["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert "nvidia.com/gpu" not in group["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_slurm_starts_ray_on_several_machines_and_none_on_one() -> None:
    large, small = files("slurm", *LARGE, given=("partition=gpu",)), files("slurm", *SHARED)
    for text in (*large.values(), *small.values()):
        if text.startswith("#!"):
            check_shell(text)
    trainer = large["trainer.sbatch"]
    lines = [line.removeprefix("#SBATCH ") for line in trainer.splitlines() if line.startswith("#SBATCH ")]
    options = dict(line.removeprefix("--").partition("=")[::2] for line in lines)
    assert (options["nodes"], options["gpus-per-node"], options["partition"]) == ("2", "8", "gpu")
    assert options["signal"] == "B:USR1@180"
    assert "requeue" in options
    assert "ray start --head" in trainer
    assert "(train run.yaml --resume)" in trainer
    assert 'kill -TERM "$pid"' in trainer
    assert 'kill -USR1 "$pid"' in large["rollout.sbatch"]
    assert "ray " not in small["trainer.sbatch"]


def test_skypilot_has_two_tasks_with_keys_that_it_knows() -> None:
    made = files("skypilot", *LARGE, given=("infra=aws/us-east-1", "use_spot=true"))
    assert set(made) == {"run.yaml", "trainer.yaml", "rollout.yaml"}
    for name, nodes in (("trainer", 2), ("rollout", 3)):
        (task,) = documents(made[f"{name}.yaml"])
        assert set(task) <= SKY_KEYS
        assert set(task["resources"]) <= SKY_RESOURCES
        assert task["num_nodes"] == nodes
        assert task["resources"]["accelerators"] == "H100:8"
        assert task["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
        assert task["secrets"]["ASYNCRL_REDIS_URL"] is None, "given by name, when it is launched"
        assert task["file_mounts"] == {"/tmp/asyncrl/run.yaml": "run.yaml"}
        check_shell(task["run"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("run.dir=runs/demo",), r"run\.dir = runs/demo.*absolute paths on storage that all of them share"),
        (("rollout.reward.file=rewards/my.py",), r"rollout\.reward\.file = rewards/my\.py"),  # B183
        (("rollout.reward.functions=[{name: a, file: b.py}]",), r"rollout\.reward\.functions = b\.py"),
        (("data.train_files=[]", "data.sources=[{files: [a.parquet]}]"), r"data\.sources = a\.parquet"),
        (("inference.tp=16", "inference.engine=sglang"), r"inference\.tp = 16.*devices_per_node = 8"),
    ],
)
def test_what_could_not_run_on_other_machines_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        files("slurm", *SHARED, *overrides)


def test_a_setting_that_is_wrong_or_missing_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"(?s)image: String should have at least 1 character.*claim \(text"):
        render(TARGETS["kuberay"], loaded(*SHARED))
    with pytest.raises(ConfigError, match="imagine: Extra inputs"):
        files("slurm", *SHARED, given=("imagine=1",))


@pytest.mark.parametrize("target", TARGETS)
def test_the_command_prints_with_dry_run_and_writes_without(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["launch", target, str(CONFIG), *SHARED, *(["--set", IMAGE[0]] if target == "kuberay" else [])]
    assert cli.main([*arguments, "--dry-run"]) == 0
    assert "##### trainer." in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert cli.main([*arguments, "--out", str(tmp_path / "made")]) == 0
    assert "next: " in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "made").iterdir()}
    assert {"trainer", "rollout"} <= {name.partition(".")[0] for name in written}


@pytest.mark.parametrize("line", re.findall(r"^asyncrl (launch .+)$", PAGE, re.MULTILINE))
def test_a_documented_line_is_taken_by_the_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[argparse.Namespace] = []
    monkeypatch.setattr(launch, "run", lambda args: taken.append(args) or 0)
    assert cli.main(line.split()) == 0
    (args,) = taken
    assert str(args.config) == "run.yaml"
    assert args.overrides == ["run.dir=/shared/runs/demo"]
    given = (*args.set, *(IMAGE if args.target == "kuberay" else ()))
    assert render(TARGETS[args.target], loaded(*SHARED), given)


def test_the_page_names_every_target_and_every_secret() -> None:
    assert all(f"launch {target} " in PAGE for target in TARGETS)
    assert all(f"`{variable}`" in PAGE for variable in (*SECRET_VARIABLES.values(), SERVER_KEY))


class KeepScript:
    """The function `keep` of the scripts, around a command of a test."""

    def __init__(self, folder: Path, command: str) -> None:
        text = documents(files("kuberay", *SHARED)["trainer.yaml"])[0]["data"]["run.sh"]
        function = text[text.index("keep() {") : text.index("echo $$")]
        (folder / "command.sh").write_text(command)
        self.process = subprocess.Popen(
            ["sh", "-c", f"{function}\nkeep sh command.sh"], cwd=folder, stdout=subprocess.PIPE, text=True
        )


def test_a_command_that_waited_in_vain_is_started_again_and_another_end_is_the_end(tmp_path: Path) -> None:
    script = KeepScript(tmp_path, 'echo x >> tries; [ "$(wc -l < tries)" -lt 3 ] && exit 75; exit 6')
    assert script.process.wait(60) == 6
    assert (tmp_path / "tries").read_text() == "x\nx\nx\n"


def test_a_signal_is_handed_on_and_the_command_may_take_its_time(tmp_path: Path) -> None:
    script = KeepScript(
        tmp_path, "trap 'echo told; stop=1' TERM; echo up; while [ -z \"$stop\" ]; do sleep 0.1; done; exit 75"
    )
    assert script.process.stdout is not None
    assert script.process.stdout.readline() == "up\n"
    os.kill(script.process.pid, signal.SIGTERM)
    assert script.process.stdout.read() == "told\n"
    assert script.process.wait(60) == 75, "asked to stop, so it is not started again"
