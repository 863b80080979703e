"""Forms of buffer.url, and how each is shown."""

from pathlib import Path

import pytest

from buffer import ServerRefused
from buffer.redis_store.address import masked, parse

PASSWORD = "p@ss:w/rd?#%&=+ "
ENCODED = "p%40ss%3Aw%2Frd%3F%23%25%26%3D%2B%20"


def test_one_server_by_port() -> None:
    found = parse(f"redis://user:{ENCODED}@host:6380/3?client_name=w7")
    assert (found.hosts, found.path, found.db, found.is_tls, found.service) == ((("host", 6380),), "", 3, False, "")
    assert found.login == {"username": "user", "password": PASSWORD, "client_name": "w7"}


def test_what_is_left_out_has_the_usual_value() -> None:
    assert parse("redis://host").hosts == (("host", 6379),)
    assert parse("rediss://host/").db == 0
    assert parse("redis+sentinel://a,b:1/s").hosts == (("a", 26379), ("b", 1))
    assert parse(f"redis://:{ENCODED}@host").login == {"password": PASSWORD}
    assert parse("redis://user@host").login == {"username": "user"}


def test_a_socket() -> None:
    found = parse(f"unix://user:{ENCODED}@/run/a%20dir/redis.sock?db=1")
    assert (found.path, found.db, found.hosts) == ("/run/a dir/redis.sock", 1, ())
    assert found.login["password"] == PASSWORD
    assert parse(f"unix:///run/redis.sock?password={ENCODED}").login == {"password": PASSWORD}


def test_nodes_of_a_cluster_and_ipv6() -> None:
    found = parse("redis://user:pw@one:7000,[2001:db8::1]:7001,[::1]")
    assert found.hosts == (("one", 7000), ("2001:db8::1", 7001), ("::1", 6379))


def test_sentinels_with_a_login_of_their_own() -> None:
    found = parse(f"redis+sentinel://user:pw@a:1,b:2/the-run/4?sentinel_username=s&sentinel_password={ENCODED}")
    assert (found.service, found.db, found.hosts) == ("the-run", 4, (("a", 1), ("b", 2)))
    assert found.login == {"username": "user", "password": "pw"}
    assert found.sentinel_login == {"username": "s", "password": PASSWORD}


def test_tls_of_servers_and_sentinels(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.touch()
    query = f"ssl_ca_certs={authority}&ssl_check_hostname=false&ssl_cert_reqs=required"
    found = parse(f"rediss+sentinel://a/s?{query}")
    tls = {"ssl_ca_certs": str(authority), "ssl_check_hostname": False, "ssl_cert_reqs": "required"}
    assert found.is_tls
    assert (found.login, found.sentinel_login) == (tls, tls)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:6379", "no scheme is not a known form"),
        ("http://localhost", "http is not a known form"),
        ("redis://host:port", "host, host:port or"),
        ("redis://", "host, host:port or"),
        ("redis://2001:db8::1", "host, host:port or"),
        ("redis://host/first", "the database is a number"),
        ("redis://host?db=-1", "the database is a number"),
        ("unix://run/redis.sock", "begins with /"),
        ("redis+sentinel://host:26379", "the service that Sentinel watches is missing"),
        (
            "redis://host?socket_timeout=1",
            "socket_timeout is not an option .*timeouts, retries and the protocol are set",
        ),
        ("redis://host?protocol=3", "protocol is not an option"),
        ("redis://host?ssl_ca_certs=/etc/ca.pem", "ssl_ca_certs is not an option of this form"),
        ("rediss://host?ssl_ca_certs=/no/such/file", "ssl_ca_certs must be a file that exists here"),
        ("rediss://host?ssl_cert_reqs=never", "ssl_cert_reqs must be required, optional or none"),
        ("rediss://host?ssl_check_hostname=maybe", "ssl_check_hostname must be true or false"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason_and_the_forms(url: str, why: str) -> None:
    with pytest.raises(ServerRefused, match=rf"{why}.*Expected redis://, rediss:// or unix://"):
        parse(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        (f"redis://user:{ENCODED}@host:6380", "redis://user:***@host:6380"),
        ("rediss://:secret@host", "rediss://:***@host"),
        ("unix://:secret@/tmp/redis.sock", "unix://:***@/tmp/redis.sock"),
        ("unix:///tmp/redis.sock?db=1&password=secret", "unix:///tmp/redis.sock?db=1&password=***"),
        (
            "redis+sentinel://u:secret@a,b/s?sentinel_password=secret",
            "redis+sentinel://u:***@a,b/s?sentinel_password=***",
        ),
        ("rediss://host?ssl_password=secret&ssl_keyfile=/k", "rediss://host?ssl_password=***&ssl_keyfile=/k"),
        ("user:secret@host", "***@host"),
    ],
)
def test_the_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    "scheme", ["redis://u:{}@host:6379/0", "unix://u:{}@/a.sock", "redis+sentinel://u:{}@a/s", "u:{}@h"]
)
@pytest.mark.parametrize(
    "password", ["p@QQ", "p/QQ", "p?QQ", "p#QQ", "p:QQ", "@:/?#QQ", "p@QQ:w/rd?x=QQ#z", "QQ&b=QQ", "p?db=QQ"]
)
def test_a_password_that_nobody_encoded_is_not_shown_either(scheme: str, password: str) -> None:
    """B195: such an address is refused or misread, and the message must not quote what it found instead."""
    url = scheme.format(password)
    assert masked(url) in (scheme.format("***"), scheme.replace("u:{}", "***"))
    try:
        found = parse(url)
    except ServerRefused as refused:
        text = f"{refused} {refused.__cause__} {refused.__context__}"
    else:
        text = f"{found} {found.shown}"
    assert "QQ" not in text


def test_no_secret_is_in_the_repr() -> None:
    found = parse("redis+sentinel://u:secret@a/s?sentinel_password=other")
    assert "secret" not in repr(found)
    assert "other" not in repr(found)
