"""The buffer by TLS: what is trusted, what is refused and how it is said."""

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from buffer import BufferConfig, Claim, Leased, ReplayBuffer, ServerLost, ServerRefused, pack
from buffer.redis_store import connections
from tests.support.certificates import OPENSSL, Authority, server_side
from tests.support.groups import group_for
from tests.support.redis_relay import RedisRelay
from tests.support.redis_server import RedisServer, running_redis

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs the openssl program to make certificates")

PATIENT = BufferConfig(retry_s=30)
"""A refusal must come at once, not after this."""
HASTY = BufferConfig(retry_s=0.2)
PASSWORD = "p@ss:w/rd?#%"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis(password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def address(relay: RedisRelay, *options: str, scheme: str = "rediss") -> str:
    return f"{scheme}://:p%40ss%3Aw%2Frd%3F%23%25@127.0.0.1:{relay.port}?{'&'.join(options)}"


def refused(url: str, config: BufferConfig = PATIENT) -> str:
    """Why the address is refused: at once, and without a secret anywhere in the chain of errors."""
    start = monotonic()
    with pytest.raises((ServerRefused, ServerLost)) as raised:
        ReplayBuffer.connect(url, "demo", config)
    assert monotonic() - start < 10
    cause: BaseException | None = raised.value
    while cause is not None:
        assert PASSWORD not in str(cause)
        assert "p%40ss" not in str(cause)
        cause = cause.__cause__ or cause.__context__
    return f"{type(raised.value).__name__}: {raised.value}"


def test_a_run_goes_by_tls(server: RedisServer, authority: Authority) -> None:
    shown = server_side(authority.sign("server", "IP:127.0.0.1"))
    with RedisRelay(server.socket, tls=shown) as relay:
        buffer = ReplayBuffer.connect(address(relay, f"ssl_ca_certs={authority.cert}"), "tls", PATIENT)
        branch = buffer.recover("n", None, number=0, limit=0, groups_per_version=1)
        claim = buffer.reserve("w")
        assert isinstance(claim, Claim)
        assert buffer.put(claim, group_for(claim, pack(branch, 0))) == "ready"
        batch = buffer.lease(branch, 0, 1, 1)
        assert isinstance(batch, Leased)
        assert buffer.fetch(batch.entries[0]).ordinal == 0
        assert not buffer.hints().wait(0.05)
        assert buffer.audit(payloads=True).ok
        buffer.close()


def test_an_authority_that_nobody_trusts_is_refused_with_the_option_that_names_it(
    server: RedisServer, authority: Authority, tmp_path: Path
) -> None:
    shown = server_side(authority.sign("server", "IP:127.0.0.1"))
    other = Authority(tmp_path, "another")
    with RedisRelay(server.socket, tls=shown) as relay:
        for url in (address(relay), address(relay, f"ssl_ca_certs={other.cert}")):
            message = refused(url)
            assert "ServerRefused" in message
            assert "certificate verify failed" in message
            assert "?ssl_ca_certs=" in message


def test_a_certificate_of_another_host_is_refused_unless_names_are_not_checked(
    server: RedisServer, authority: Authority
) -> None:
    shown = server_side(authority.sign("elsewhere", "DNS:elsewhere.example"))
    with RedisRelay(server.socket, tls=shown) as relay:
        trusted = f"ssl_ca_certs={authority.cert}"
        message = refused(address(relay, trusted))
        assert "not valid for '127.0.0.1'" in message
        assert "must be a name in the server's certificate" in message
        ReplayBuffer.connect(address(relay, trusted, "ssl_check_hostname=false"), "tls", PATIENT).close()


def test_a_server_that_asks_for_a_certificate_gets_the_one_that_the_address_names(
    server: RedisServer, authority: Authority
) -> None:
    shown = server_side(authority.sign("server", "IP:127.0.0.1"), clients_of=authority)
    client = authority.sign("client", "DNS:worker")
    with RedisRelay(server.socket, tls=shown) as relay:
        trusted = f"ssl_ca_certs={authority.cert}"
        # Such a server may hang up without a word.
        assert "client's certificate (?ssl_certfile=)" in refused(address(relay, trusted), HASTY)
        own = (f"ssl_certfile={client.cert}", f"ssl_keyfile={client.key}")
        ReplayBuffer.connect(address(relay, trusted, *own), "tls", PATIENT).close()


def test_tls_and_none_are_not_taken_for_each_other(
    server: RedisServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_TOPOLOGY_S", 0.5)
    question = "Does it speak TLS (rediss://) or not (redis://) as buffer.url says"
    with RedisRelay(server.socket, by_port=True) as plain:
        assert question in refused(address(plain), HASTY), "Redis takes a greeting of TLS for half a command, and waits"
    shown = server_side(authority.sign("server", "IP:127.0.0.1"))
    with RedisRelay(server.socket, tls=shown) as relay:
        assert question in refused(address(relay, scheme="redis"), HASTY)


def test_a_wrong_password_by_tls_is_a_wrong_password(server: RedisServer, authority: Authority) -> None:
    shown = server_side(authority.sign("server", "IP:127.0.0.1"))
    with RedisRelay(server.socket, tls=shown) as relay:
        url = address(relay, f"ssl_ca_certs={authority.cert}").replace("p%40ss", "wr0ng")
        message = refused(url)
        assert "refused the password" in message
        assert "wr0ng" not in message


def test_a_file_that_is_no_certificate_is_refused(server: RedisServer, authority: Authority, tmp_path: Path) -> None:
    shown = server_side(authority.sign("server", "IP:127.0.0.1"))
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with RedisRelay(server.socket, tls=shown) as relay:
        assert "TLS failed" in refused(address(relay, f"ssl_ca_certs={nonsense}"))
