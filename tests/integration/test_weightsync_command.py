"""`python -m weightsync inspect` and `verify` on a real log and on model directories, and `bench`."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.weights import changed_model, manifest_of, random_model, save_model
from weightsync.__main__ import main
from weightsync.config import WeightsyncConfig
from weightsync.log import VersionLog, open_log
from weightsync.manifest import Manifest
from weightsync.publisher import WeightPublisher
from weightsync.shard import LocalShard
from weightsync.transport import Transport, open_transport
from weightsync.versions import pack

SHAPES = {"a.weight": ("bfloat16", (40, 8)), "a.steps": ("int32", (7,)), "a.codes": ("uint8", (9,))}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run of three versions with one anchor."""
    config = WeightsyncConfig(directory=str(tmp_path / "parts"), bucket_words=100, anchor_interval=2)
    log = publish_two(tmp_path, config, open_transport(config, "", "run"))
    log.register("s", "1", "http://s", 60.0)
    log.put_ack("s", "1", pack(1, 2), log.digest_of(pack(1, 2)) or 0, "serving")
    log.need("t", "no path")
    return tmp_path


def publish_two(tmp_path: Path, config: WeightsyncConfig, transport: Transport) -> VersionLog:
    manifest = manifest_of(SHAPES)
    model = random_model(manifest)
    save_model(tmp_path / "model", manifest, model)

    def shards() -> list[LocalShard]:
        tensors = {name: torch.from_numpy(words.copy()) for name, words in model.items()}
        whole = {segment.tensor: segment for segment in manifest.whole()}
        return [LocalShard(name, tensor, (whole[name],)) for name, tensor in tensors.items()]

    log = open_log(str(tmp_path), "run")
    publisher = WeightPublisher(Manifest.from_model_dir(tmp_path / "model", "bfloat16"), shards, log, transport, config)
    publisher.publish_origin(tmp_path / "model")
    publisher.claim(1)
    for number in (1, 2):
        model.update(changed_model(model, number))
        publisher.publish(pack(1, number))
    return log


def test_inspect_shows_versions_servers_and_needs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(home), "run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["head"] == "1.2"
    assert [entry["version"] for entry in found["versions"]] == ["0.0", "1.1", "1.2"]
    assert found["versions"][2]["anchor_bytes"] > 0
    assert found["servers"]["s"]["state"] == "serving"
    assert found["needs"][0]["server"] == "t"
    assert main(["inspect", str(home), "run"]) == 0
    assert "head: 1.2" in capsys.readouterr().out


def test_verify_rebuilds_head_and_finds_a_damaged_part(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(home), "run", "--directory", str(home / "parts"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["rebuilt"] == found["digest"]
    assert found["parts"] > 0
    part = next(path for path in (home / "parts").rglob("0:0"))
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    assert main(command) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert len(found["problems"]) == 1


def test_verify_reads_the_memory_of_a_rank_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = WeightsyncConfig(transport="tcp", bucket_words=100)
    transport = open_transport(config, str(tmp_path), "run")
    publish_two(tmp_path, config, transport)
    assert main(["verify", str(tmp_path), "run", "--tcp", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["rebuilt"]) == (True, found["digest"])
    transport.close()
    assert main(["verify", str(tmp_path), "run", "--tcp"]) == 1
    assert "does not answer" in str(capsys.readouterr())


def test_an_empty_log_has_nothing_to_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path), "run", "--directory", str(tmp_path / "parts")]) == 0
    assert "head: None" in capsys.readouterr().out


def test_a_model_directory_has_a_layout_and_a_digest_that_can_be_verified(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(home / "model")
    assert main(["inspect", model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    log = open_log(str(home), "run")
    assert found["digest"] == f"{log.digest_of(0) or 0:016x}", "version 0.0 is this directory"
    assert found["layout"] == log.records()[0].layout
    assert found["dtypes"] == {"bfloat16": 1, "int32": 1, "uint8": 1}
    assert main(["verify", model, "--digest", found["digest"]]) == 0
    assert main(["verify", model, "--digest", "0" * 16, "--json"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ok"] is False
    assert main(["inspect", str(home / "nothing")]) == 1
    assert "safetensors not found" in capsys.readouterr().err


def test_bench_measures_this_machine_and_a_transport_and_leaves_no_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "--words", "5000", "--changed", "0.03", "--json"]
    assert main(command) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main([*command, "--directory", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() - alone.keys() == {f"{a}_{b}_gb_s" for a in ("frame", "dense") for b in ("put", "get")}
    assert found["changed"] == 150
    assert all(found[f"{step}_gb_s"] > 0 for step in ("memcpy", "encode", "check", "apply", "digest", "dense_get"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "--changed", "0"])
