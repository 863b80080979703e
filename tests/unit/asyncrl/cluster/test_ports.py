"""A port that is reserved for a process which is started later."""

import errno
import socket

import pytest

from asyncrl.cluster.ports import ReservedPort


def test_nobody_is_given_a_reserved_port_and_a_server_may_listen_on_it() -> None:
    with ReservedPort("127.0.0.1") as port:
        where = ("127.0.0.1", port.number)
        with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
            other.bind(where)
        assert refused.value.errno == errno.EADDRINUSE
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(where)
        with socket.create_server(where) as server:
            port.close()
            with socket.create_connection(where), server.accept()[0]:
                pass


def test_a_port_is_reserved_again_and_again_but_not_one_that_somebody_listens_on() -> None:
    with ReservedPort("127.0.0.1") as port:
        number = port.number
    with ReservedPort("127.0.0.1", number) as again:
        assert again.number == number
    with socket.create_server(("127.0.0.1", number)), pytest.raises(OSError, match="in use"):
        ReservedPort("127.0.0.1", number)
