"""The host's side: the constant update body, and staging that leaves nothing half-done."""

import base64
import io
import pickle
from pathlib import Path

import pytest
import torch

from tests.support.weights import manifest_of, random_model, save_model
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.errors import ChainBroken, TransportFull
from weightsync.log import open_log
from weightsync.log.records import VersionRecord
from weightsync.receiver import UPDATE_BODY, Receiver
from weightsync.ticket import TICKET, PartsWriter
from weightsync.transport import open_transport


def test_the_update_body_is_one_empty_tensor_and_needs_only_what_a_server_unpickles() -> None:
    allowed = {
        ("torch._utils", "_rebuild_tensor_v2"),
        ("torch.storage", "_load_from_bytes"),
        ("collections", "OrderedDict"),
    }

    class Allowing(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> object:
            assert (module, name) in allowed
            return super().find_class(module, name)

    ((name, tensor),) = Allowing(io.BytesIO(base64.b64decode(UPDATE_BODY, validate=True))).load()
    assert (name, tensor.dtype, tensor.numel()) == ("@weightsync", torch.uint8, 0)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    manifest = manifest_of()
    save_model(tmp_path / "model", manifest, random_model(manifest))
    config = WeightsyncConfig(directory=str(tmp_path / "parts"))
    log = open_log(str(tmp_path / "log"), "run")
    digest = digest_of_model_dir(tmp_path / "model", manifest)
    log.put_document(f"layout:{manifest.layout_id}", manifest.to_bytes())
    log.flip(None, VersionRecord(0, None, "o", manifest.layout_id, digest, model_dir="/elsewhere"))
    return Receiver(
        *(log, open_transport(config, "unused", "run"), config),
        **{"server": "s", "incarnation": "1", "url": "http://s"},
        **{"stage_dir": tmp_path / "stage", "model_dir": tmp_path / "model"},
    )


def test_a_fresh_server_holds_version_zero_and_has_nothing_to_stage(receiver: Receiver) -> None:
    assert receiver.head() == 0
    assert receiver.stage(0) is None
    receiver.acknowledge(0, receiver.origin_digest())
    receiver.renew()
    assert receiver.wish() == "serve"
    receiver.leave()


def test_a_server_that_lost_its_weights_reloads_its_own_directory_without_the_network(
    receiver: Receiver, tmp_path: Path
) -> None:
    ticket = receiver.stage(None)
    assert ticket is not None
    assert (ticket.kind, ticket.target) == ("anchor", 0)
    manifest = manifest_of()
    assert sum(entry.num_changed for entry in ticket.entries) == manifest.num_words
    assert len(list((tmp_path / "stage").glob("parts-*"))) == 1
    assert receiver.stage(None) is not None
    assert len(list((tmp_path / "stage").glob("parts-*"))) == 1


def test_staging_that_cannot_write_leaves_the_old_ticket_and_no_half_file(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.stage(None)
    before = (tmp_path / "stage" / TICKET).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PartsWriter, "_write", full)
    with pytest.raises(TransportFull, match=r"weightsync\.stage_dir"):
        receiver.stage(None)
    assert (tmp_path / "stage" / TICKET).read_bytes() == before
    assert [path.name for path in (tmp_path / "stage").iterdir() if path.name.startswith(".")] == []


def test_an_empty_log_is_said_to_be_empty(tmp_path: Path) -> None:
    manifest = manifest_of()
    save_model(tmp_path / "model", manifest, random_model(manifest))
    config = WeightsyncConfig(directory=str(tmp_path / "parts"))
    receiver = Receiver(
        *(open_log(str(tmp_path / "log"), "run"), open_transport(config, "unused", "run"), config),
        **{"server": "s", "incarnation": "1", "url": "http://s"},
        **{"stage_dir": tmp_path / "stage", "model_dir": tmp_path / "model"},
    )
    assert receiver.head() is None
    assert receiver.stage(None) is None
    with pytest.raises(ChainBroken, match="the log has no version yet"):
        receiver.stage_inspect()
