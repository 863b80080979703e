"""Where a rank says that its parts are read, and what of that a reader takes."""

import socket

import pytest
from pydantic import ValidationError

from weightsync.config import TcpConfig
from weightsync.errors import TransportError
from weightsync.transport.tcp import address
from weightsync.transport.tcp.address import address_of, url_of


def test_addresses_are_written_and_read_back() -> None:
    assert url_of(TcpConfig(), 5) == "tcp://127.0.0.1:5"
    assert address_of(url_of(TcpConfig(bind="::1"), 5)) == ("::1", 5)
    assert address_of(url_of(TcpConfig(bind="0.0.0.0", advertise="node-7"), 29600)) == ("node-7", 29600)
    for bind in ("0.0.0.0", "::"):
        host, port = address_of(url_of(TcpConfig(bind=bind), 7))
        assert host not in ("0.0.0.0", "::")
        assert port == 7
    for wrong in ("http://a:1", "tcp://a", "tcp://:1", "a:1", "tcp://[a:1", "tcp://a:99999", ""):
        with pytest.raises(TransportError, match="no address of a part server"):
            address_of(wrong)


def test_a_network_stands_for_the_address_that_this_machine_has_in_it() -> None:
    assert url_of(TcpConfig(bind="0.0.0.0", advertise="127.0.0.0/8"), 5) == "tcp://127.0.0.1:5"
    for elsewhere in ("203.0.113.0/24", "203.0.113.7/32"):
        with pytest.raises(TransportError, match=r"has no address there, it would go by .* the network that joins"):
            url_of(TcpConfig(bind="0.0.0.0", advertise=elsewhere), 5)
    with pytest.raises(ValidationError, match=r"advertise = '10\.1\.0\.5/16' is no network: .*host bits"):
        TcpConfig(advertise="10.1.0.5/16")


def test_a_machine_without_a_way_to_others_gives_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "_own_address", lambda towards: None)
    assert url_of(TcpConfig(bind="0.0.0.0"), 5) == f"tcp://{socket.gethostname()}:5"
