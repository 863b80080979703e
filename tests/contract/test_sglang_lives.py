"""What ends a server, what a new one begins with, and who may call it: of the local server and of the real SGLang."""

import base64
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch

from tests.support.inference_servers import InferenceServer, inference_server, payload, wait_for
from tests.support.local_models import save_model
from tests.support.sglang_python import skip_without_sglang
from tests.support.weight_loader import NAME as LOADER

SERVERS = ["local", pytest.param("sglang", marks=pytest.mark.sglang)]
NORM = "model.norm.weight"
TENSOR = [(NORM, torch.ones(64))]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "qwen2")


class _Blocked:
    def __reduce__(self) -> object:
        return os.getcwd, ()


def _in_session(payloads: list[str], load_format: str | None) -> Callable[[InferenceServer], object]:
    def update(server: InferenceServer) -> object:
        assert server.post("/begin_weight_update", {}).status_code == 200
        body = {"serialized_named_tensors": payloads, "load_format": load_format}
        return server.post("/update_weights_from_tensor", body)

    return update


def _release_while_busy(server: InferenceServer) -> object:
    server.start(num=server.many)
    return server.post("/release_memory_occupation", {})


KILLERS: dict[str, Callable[[InferenceServer], object]] = {
    "a load_format that is not listed": _in_session([payload(TENSOR)], "nobody.knows.it"),
    "an exception in a loader": _in_session([payload([("@raise", torch.ones(1))])], LOADER),
    "an exception in load_weights": _in_session([payload([(NORM, torch.ones(3))])], None),
    "a pickle with a blocked global": _in_session([base64.b64encode(pickle.dumps([_Blocked()])).decode()], None),
    "no payload for a rank": _in_session([], None),
    "memory released while busy": _release_while_busy,
}


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("name", KILLERS)
def test_what_kills_sglang_drops_the_connection_and_ends_the_process(kind: str, name: str, model_dir: Path) -> None:
    skip_without_sglang(kind)
    with inference_server(kind, model_dir) as server:
        with pytest.raises(httpx.TransportError):
            KILLERS[name](server)
        assert server.process.wait(30) != 0


@pytest.mark.parametrize("kind", SERVERS)
def test_a_new_life_forgets_version_and_weights_and_only_some_models_tell_parameters(
    kind: str, model_dir: Path
) -> None:
    skip_without_sglang(kind)
    with inference_server(kind, model_dir) as server:
        assert server.post("/get_weights_by_name", {"name": NORM}).status_code == 400
        first = server.checksum()
        assert server.update(TENSOR, weight_version="5.0").status_code == 200
        assert server.checksum() != first
    with inference_server(kind, model_dir) as server:
        assert server.version() == "0.0"
        assert server.checksum() == first


@pytest.mark.parametrize("kind", SERVERS)
def test_an_admin_key_closes_control_routes_to_the_api_key(kind: str, model_dir: Path) -> None:
    skip_without_sglang(kind)
    keys = {"none": {}, "api": {"Authorization": "Bearer K"}, "admin": {"Authorization": "Bearer A"}}
    flags = ("--api-key", "K", "--admin-api-key", "A")
    with inference_server(kind, model_dir, *flags, headers=keys["api"]) as server:
        got = {
            (path, name): server.http.request("POST", path, json=body, headers=header).status_code
            for path, body in (
                ("/generate", server.body([1, 2], 1)),
                ("/abort_request", {"rid": "zz"}),
                ("/flush_cache", None),
            )
            for name, header in (("api", keys["api"]), ("admin", keys["admin"]))
        }
        assert got["/generate", "api"] == 200
        assert (got["/abort_request", "api"], got["/abort_request", "admin"]) == (401, 200)
        assert (got["/flush_cache", "api"], got["/flush_cache", "admin"]) == (401, 200)
        without = httpx.Client(base_url=server.url, timeout=60)
        wait_for("its first generation is done", lambda: without.get("/health").status_code == 200)
        assert without.get("/model_info").status_code == 401
        assert without.post("/generate", json=server.body([1], 1)).status_code == 401
