"""The doctor finds what would stop a run, says how to mend it, and shows no password."""

import importlib.util
import json
import socket
import sys
from pathlib import Path

import pytest

from asyncrl.config import Config
from asyncrl.doctor import Finding, check, exit_code, ledger, preflight, render
from asyncrl.doctor.inputs import check_data, check_model
from asyncrl.doctor.machine import check_devices, check_disk, check_parts_server, check_ports
from asyncrl.doctor.sampling import check_sampling
from asyncrl.doctor.software import check_packages, check_server, check_versions
from asyncrl.doctor.weights import check_weights
from asyncrl.load_config import load
from tests.support.chat_models import make_model_dir
from tests.support.weights import manifest_of, random_model, save_model


def config_of(*overrides: str) -> Config:
    return load(None, overrides).config


def only(findings: list[Finding], name: str) -> Finding:
    (found,) = [finding for finding in findings if finding.name == name]
    return found


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    manifest = manifest_of()
    directory = save_model(tmp_path / "model", manifest, random_model(manifest))
    config = (directory / "config.json").read_text() if (directory / "config.json").exists() else "{}"
    make_model_dir(directory, "chatml")
    (directory / "config.json").write_text(config)
    return directory


def test_our_packages_are_ours_here() -> None:
    assert all(finding.ok for finding in check_packages(Config()))


def test_a_package_that_another_distribution_owns_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"buffer": ["buffer", "asyncrl"]})
    found = only(list(check_packages(Config())), "package buffer")
    assert not found.ok
    assert "pip uninstall buffer" in found.fix


def test_a_package_without_our_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(importlib.import_module("weightsync"), "OWNER")
    assert not only(list(check_packages(Config())), "package weightsync").ok


def test_the_installed_versions_are_what_we_ask_for() -> None:
    assert [finding for finding in check_versions(Config()) if not finding.ok] == []


def test_a_library_of_the_wrong_version_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["numpy>=99", "no-such-library>=1", "rich>=13"])
    found = only(list(check_versions(Config())), "libraries")
    assert not found.ok
    assert "needs >=99" in found.detail
    assert "no-such-library is missing" in found.detail
    assert "rich" not in found.detail


def test_a_port_in_use_is_found(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (found,) = check_ports(config_of(f"inference.base_port={port}"))
    assert not found.ok
    assert str(port) in found.detail
    assert "inference.base_port" in found.fix


def test_ports_that_the_system_chooses_need_no_check() -> None:
    (found,) = check_ports(config_of("inference.base_port=0"))
    assert found.ok


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    (found,) = check_ports(config_of("inference.base_port=30000", "inference.host=203.0.113.7"))
    assert not found.ok


def test_ports_of_weights_over_tcp_are_found_to_be_free_or_taken_for_every_rank() -> None:
    assert list(check_parts_server(config_of())) == []
    tcp = ("weightsync.transport=tcp", "trainer.parallel.fsdp=2")
    (found,) = check_parts_server(config_of(*tcp))
    assert found.ok
    assert "2 ranks would be read at any free port, like tcp://127.0.0.1:" in found.detail
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (found,) = check_parts_server(
            config_of(*tcp, f"weightsync.tcp.first_port={port}", "weightsync.tcp.num_ports=1")
        )
    assert not found.ok
    assert f"cannot listen on ports {port} to {port} of 127.0.0.1" in found.detail


def test_too_little_room_on_disk_is_found_before_the_run(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(f"model.path={model_dir}", f"run.dir={model_dir.parent / 'runs' / 'new'}")
    (found,) = check_disk(config)
    assert found.ok
    monkeypatch.setattr("asyncrl.doctor.machine.MIN_FREE_BYTES", 1 << 60)
    (found,) = check_disk(config)
    assert not found.ok
    assert "run.dir" in found.fix


def test_a_model_directory_that_will_do_is_ok(model_dir: Path) -> None:
    findings = list(check_model(config_of(f"model.path={model_dir}")))
    assert [finding.name for finding in findings if finding.ok] == ["weights", "chat template"]


def test_a_model_without_chat_template_is_found(model_dir: Path) -> None:
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (model_dir / name).unlink(missing_ok=True)
    findings = list(check_model(config_of(f"model.path={model_dir}")))
    assert not only(findings, "chat template").ok
    assert only(findings, "weights").ok


def test_weights_of_another_type_than_the_wire_are_found(model_dir: Path) -> None:
    findings = list(check_model(config_of(f"model.path={model_dir}", "model.wire_dtype=float16")))
    assert "wire_dtype" in only(findings, "weights").detail


def test_a_missing_model_is_found_unless_the_starter_makes_it(tmp_path: Path) -> None:
    (missing,) = check_model(config_of(f"model.path={tmp_path / 'none'}"))
    assert not missing.ok
    (made,) = check_model(config_of(f"model.path={tmp_path / 'none'}", "starter.seed=1"))
    assert made.ok
    assert "starter" in made.detail


def test_data_files_are_read_as_a_run_would_read_them(tmp_path: Path, model_dir: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    row = {"prompt": "hello", "data_source": "x", "reward_model": {"style": "rule", "ground_truth": "1"}}
    good.write_text(json.dumps(row) + "\n")
    bad.write_text("{\n")
    config = config_of(f"model.path={model_dir}", f"data.train_files=[{good}]", f"data.val_files=[{bad}]")
    findings = list(check_data(config))
    assert only(findings, "training data").ok
    assert "1 of 1 rows usable" in only(findings, "training data").detail
    assert "bad.jsonl" in only(findings, "held-out data").detail
    assert not only(findings, "held-out data").ok


def test_missing_data_files_are_named(tmp_path: Path) -> None:
    findings = list(check_data(config_of(f"data.train_files=[{tmp_path / 'no.parquet'}]")))
    assert not only(findings, "training data").ok
    assert "no.parquet" in only(findings, "training data").detail
    assert only(findings, "held-out data").ok


def test_training_without_data_files_is_found() -> None:
    assert not only(list(check_data(Config())), "training data").ok


def test_more_computing_threads_than_cores_get_advice_and_no_refusal() -> None:
    found = only(list(check_devices(config_of("cluster.threads=1024"))), "threads")
    assert found.ok
    assert "cluster.threads" in found.fix


def test_cuda_asked_for_and_not_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.doctor.machine.num_cuda_devices", lambda: 0)
    assert not only(list(check_devices(config_of("trainer.device=cuda"))), "devices").ok
    monkeypatch.setattr("asyncrl.doctor.machine.num_cuda_devices", lambda: 1)
    found = only(list(check_devices(config_of("trainer.device=cuda", "inference.servers=2"))), "devices")
    assert not found.ok
    assert "need 3 devices" in found.detail


def test_sampling_from_a_part_of_the_distribution_gets_advice_and_no_refusal() -> None:
    """B084: equal weights have a ratio of 1, which is what hides the bias."""
    (whole,) = check_sampling(config_of())
    assert (whole.ok, whole.fix) == (True, "")
    for override in ("rollout.top_p=0.8", "rollout.top_k=20"):
        (found,) = check_sampling(config_of(override))
        assert found.ok
        assert override.replace("=", " = ") in found.detail
        assert "rollout.top_p = 1" in found.fix


def test_the_local_engine_needs_no_sglang() -> None:
    assert list(check_server(Config())) == []


def test_an_environment_without_sglang_is_found() -> None:
    (found,) = check_server(config_of("inference.engine=sglang", f"inference.python={sys.executable}"))
    assert not found.ok
    assert "scripts/setup --sglang" in found.fix


def test_a_python_that_is_not_there_is_found(tmp_path: Path) -> None:
    (found,) = check_server(config_of("inference.engine=sglang", f"inference.python={tmp_path / 'python'}"))
    assert not found.ok


def test_a_check_that_breaks_hides_no_other_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Config) -> list[Finding]:
        raise RuntimeError("cannot read redis://:hunter%402@host:6379/0, password hunter@2")

    monkeypatch.setattr(preflight, "check_redis", broken)
    findings = check(config_of("buffer.url=redis://:hunter%402@host:6379/0"))
    assert "the check itself failed: RuntimeError" in only(findings, "Redis").detail
    assert "hunter" not in render(findings)
    assert only(findings, "Python").ok
    assert exit_code(findings) == 3


def test_the_address_comes_from_the_environment_when_it_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCRL_REDIS_URL", "redis://elsewhere:6379/0")
    assert ledger.redis_url(Config()) == "redis://elsewhere:6379/0"
    monkeypatch.delenv("ASYNCRL_REDIS_URL")
    assert ledger.redis_url(Config()) is None


def test_findings_are_shown_with_their_fix_and_a_verdict() -> None:
    findings = [
        Finding("Python", True, "3.11.7"),
        Finding("threads", True, "4 on 2 cores", "Lower cluster.threads."),
        Finding("disk", False, "0.1 GB free", "Make room."),
    ]
    text = render(findings)
    assert text.splitlines()[-1] == "1 of 3 checks failed."
    assert "FAIL" in text
    assert "-> Make room." in text
    assert exit_code(findings) == 3
    assert exit_code(findings[:2]) == 0
    assert "Everything a run needs is there." in render(findings[:2])


def test_parts_of_weights_are_put_read_and_removed_where_they_are_files(tmp_path: Path) -> None:
    assert list(check_weights(config_of())) == [], "through Redis, which has a check of its own"
    config = config_of(f"weightsync.directory={tmp_path / 'parts'}")
    (found,) = check_weights(config)
    assert found == Finding("weights directory", True, "a part can be put, read and removed")
    assert [path for path in (tmp_path / "parts").rglob("*") if path.is_file()] == []


def test_a_store_whose_package_is_missing_or_a_folder_that_is_a_file_is_found(tmp_path: Path) -> None:
    (found,) = check_weights(config_of("weightsync.directory=lakefs://bucket/run"))
    assert not found.ok
    assert "pip install lakefs_spec" in found.detail
    (tmp_path / "file").write_text("")
    (found,) = check_weights(config_of(f"weightsync.directory={tmp_path / 'file'}"))
    assert not found.ok
    assert "weightsync.directory" in found.fix


def test_a_cluster_that_nobody_answers_for_is_found_before_the_run() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        config = config_of("cluster.backend=ray", f'cluster.ray_address="{address}"')
        found = only(list(check_devices(config)), "cluster")
        assert not found.ok
        assert address in found.detail
        listener.listen()
        assert only(list(check_devices(config)), "cluster").ok


def test_a_cluster_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = only(list(check_devices(config_of("cluster.backend=ray"))), "cluster")
    assert (found.ok, found.fix) == (False, "pip install 'asyncrl[ray]'")
