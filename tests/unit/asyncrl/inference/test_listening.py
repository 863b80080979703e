"""Where a server listens."""

import pytest

from asyncrl.config import InferenceConfig
from asyncrl.errors import PreflightError
from asyncrl.inference.listening import own_address


@pytest.mark.parametrize("host", ["127.0.0.1", "server-3", "::1"])
def test_an_address_is_itself(host: str) -> None:
    assert own_address(host) == host


def test_a_network_stands_for_this_machines_address_in_it() -> None:
    assert own_address("127.0.0.0/8").startswith("127.")
    assert own_address("127.0.0.1/32") == "127.0.0.1"


def test_a_network_that_this_machine_is_not_in_is_refused() -> None:
    with pytest.raises(PreflightError, match=r"inference\.host = 198\.51\.100\.0/24"):
        own_address("198.51.100.0/24")


def test_what_looks_like_a_network_has_to_be_one() -> None:
    with pytest.raises(ValueError, match=r"inference\.host = '10\.0\.0\.1/16' is no network"):
        InferenceConfig(host="10.0.0.1/16")
