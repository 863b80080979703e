"""What a server that somebody else started must say of itself before anything is done to it."""

from pathlib import Path
from typing import Any

import pytest

from asyncrl.inference.adoption import NotAdoptable, require_adoptable
from asyncrl.inference.client import ServerClient
from asyncrl.inference.launcher import LOADER
from tests.support.event_loop import in_event_loop
from tests.support.fake_sglang import VOCAB, running_fake

STAGE = Path("/dev/shm/stage/adopted-0")


async def adopt(info: dict[str, Any], *, key: str | None = None, **wanted: Any) -> None:
    with running_fake(info=info, key=key) as fake:
        client = ServerClient(fake.url, vocab_size=VOCAB)
        wanted = {"num_ranks": 1, "record_experts": False, "keeps_kv": False, **wanted}
        try:
            await require_adoptable(client, stage_dir=STAGE, **wanted)
        finally:
            await client.close()
        assert [path for path in fake.paths if path != "/server_info"] == [], "it is only looked at"


@pytest.mark.parametrize(
    "info",
    [
        {"custom_weight_loader": [LOADER]},
        {"custom_weight_loader": ["other.load", LOADER], "tp_size": 1},
        {"custom_weight_loader": f"other.load {LOADER}", "enable_return_routed_experts": False},
    ],
)
@in_event_loop
async def test_a_server_with_our_loader_is_adopted(info: dict[str, Any]) -> None:
    await adopt(info)


@pytest.mark.parametrize(
    ("info", "settings", "words"),
    [
        ({"custom_weight_loader": []}, {}, "weight loaders none"),
        ({}, {}, "weight loaders none"),
        ({"custom_weight_loader": None}, {}, "weight loaders none"),
        ({"custom_weight_loader": ["other.load"]}, {}, r"weight loaders \['other.load'\]"),
        ({"custom_weight_loader": [LOADER], "tp_size": 2}, {}, r"tp_size = 2, and inference\.tp = 1"),
        (
            {"custom_weight_loader": [LOADER], "enable_return_routed_experts": False},
            {"record_experts": True},
            r"inference\.record_experts = True",
        ),
        (
            {"custom_weight_loader": [LOADER], "disable_overlap_schedule": False},
            {"keeps_kv": True},
            "with --disable-overlap-schedule, or set",
        ),
        ({"custom_weight_loader": [LOADER]}, {"key": "secret"}, "ASYNCRL_SERVER_KEY"),
    ],
)
@in_event_loop
async def test_what_is_missing_is_named_with_the_way_to_start_it(
    info: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    """A loader that it was not started with would end it."""
    with pytest.raises(NotAdoptable, match=words) as refused:
        await adopt(info, **settings)
    assert "secret" not in str(refused.value)
    assert "Start it" in str(refused.value) or f"ASYNCRL_STAGE_DIR={STAGE}" in str(refused.value)
