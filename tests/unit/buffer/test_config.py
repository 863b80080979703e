"""Settings of the buffer: what is impossible is refused when it is read, with the key and both values."""

from typing import Any

import pytest
from pydantic import ValidationError

from buffer import BufferConfig, PayloadConfig, StalenessConfig


@pytest.mark.parametrize("limit", [True, "2", -1, float("nan"), 1.5])
def test_a_limit_that_is_no_number_of_versions_is_refused(limit: Any) -> None:
    with pytest.raises(ValidationError, match="limit"):
        StalenessConfig(limit=limit)


@pytest.mark.parametrize("limit", [None, 0, 4])
def test_a_limit_or_none_is_taken(limit: int | None) -> None:
    assert StalenessConfig(limit=limit).limit == limit


def test_a_claim_outlives_a_lost_renewal() -> None:
    with pytest.raises(ValidationError, match=r"claim_s = 40.0 must be at least 3 x buffer.renew_every_s = 15.0"):
        BufferConfig(claim_s=40.0)


def test_one_group_fits_the_budget() -> None:
    with pytest.raises(ValidationError, match=r"max_group_bytes = 11 is larger than buffer.max_bytes = 10"):
        BufferConfig(max_bytes=10, max_group_bytes=11)


def test_a_group_that_no_redis_takes_needs_another_home() -> None:
    large = {"max_group_bytes": 1 << 30}
    with pytest.raises(ValidationError, match=r"buffer.max_group_bytes = 1073741824 is more than .*payload.home"):
        BufferConfig(**large)
    assert BufferConfig(**large, payload=PayloadConfig(home="file:///shared", spill_bytes=0)).payload.spill_bytes == 0


def test_the_home_of_payloads_is_redis_or_a_url() -> None:
    with pytest.raises(ValidationError, match="file:///path"):
        PayloadConfig(home="/shared/groups")
    assert PayloadConfig(home="file:///shared/groups").home == "file:///shared/groups"


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_size"):
        BufferConfig.model_validate({"max_size": 3})


def test_the_password_of_the_server_is_not_shown() -> None:
    config = BufferConfig.model_validate_json('{"url": "redis://user:secret@host"}')
    assert "secret" not in f"{config!r} {config}"


@pytest.mark.parametrize("model", [BufferConfig, StalenessConfig, PayloadConfig])
def test_every_setting_explains_itself(model: Any) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []
