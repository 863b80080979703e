"""The address of the run's Redis: its forms, what may stand in them, and how it is shown without its secrets.

redis://[user:password@]host[:port][,host:port ...][/db][?options]     one server, or nodes of a Redis Cluster
unix://[user:password@]/path/of/the.sock[?options]                     a server on this machine
redis+sentinel://[user:password@]host[:port],.../service[/db][?options]     the primary that Sentinel names
rediss:// and rediss+sentinel://                                        the same by TLS
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from buffer.errors import ServerRefused

_SERVER_PORT, _SENTINEL_PORT = 6379, 26379
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_SECRETS = ("password", "sentinel_password", "ssl_password")


@dataclass(frozen=True, slots=True)
class _Form:
    """What a scheme means."""

    port: int
    is_path: bool = False
    is_tls: bool = False
    names_service: bool = False


_FORMS = {
    "redis": _Form(_SERVER_PORT),
    "rediss": _Form(_SERVER_PORT, is_tls=True),
    "unix": _Form(0, is_path=True),
    "redis+sentinel": _Form(_SENTINEL_PORT, names_service=True),
    "rediss+sentinel": _Form(_SENTINEL_PORT, is_tls=True, names_service=True),
}


def _truth(text: str) -> bool:
    return _TRUTH[text.lower()]


def _file(text: str) -> str:
    if not Path(text).exists():
        raise ValueError
    return text


def _requirement(text: str) -> str:
    if text not in ("required", "optional", "none"):
        raise ValueError
    return text


_OPTIONS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "db": (int, "a number"),
    "username": (str, "text"),
    "password": (str, "text"),
    "client_name": (str, "text"),
    "sentinel_username": (str, "text"),
    "sentinel_password": (str, "text"),
}
_TLS_OPTIONS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "ssl_ca_certs": (_file, "a file that exists here"),
    "ssl_ca_path": (_file, "a directory that exists here"),
    "ssl_certfile": (_file, "a file that exists here"),
    "ssl_keyfile": (_file, "a file that exists here"),
    "ssl_password": (str, "text"),
    "ssl_cert_reqs": (_requirement, "required, optional or none"),
    "ssl_check_hostname": (_truth, "true or false"),
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect. Secrets stand in the fields that its repr leaves out."""

    shown: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    is_tls: bool = False
    db: int = 0
    login: Mapping[str, object] = field(default_factory=dict, repr=False)
    """username, password, client_name and ssl_* of a connection to a server."""
    sentinel_login: Mapping[str, object] = field(default_factory=dict, repr=False)
    """The same of a connection to a Sentinel."""


def parse(url: str) -> Address:
    """Take an address apart.

    Raises:
        ServerRefused: it has no known form, or an option that is not ours to take; secrets are not in the message.
    """
    shown = masked(url)
    scheme, separator, rest = url.partition("://")
    form = _FORMS.get(scheme)
    if not separator or form is None:
        raise _refused(shown, f"{scheme if separator else 'no scheme'} is not a known form")
    rest, _, query = rest.partition("?")
    if "@" in query:  # part of a password would be taken for an option, and quoted
        raise _refused(shown, "there is a ? before an @; one of them is to be percent-encoded: %3F, %40")
    account, _, place = rest.rpartition("@")
    options = _options(shown, query, form)
    user, _, password = account.partition(":")
    if user:
        options.setdefault("username", unquote(user))
    if password:
        options.setdefault("password", unquote(password))
    hosts: tuple[tuple[str, int], ...]
    if form.is_path:
        path, hosts, service, db = unquote(place), (), "", ""
        if not path.startswith("/"):
            raise _refused(shown, "the path of a socket begins with /")
    else:
        listed, _, tail = place.partition("/")
        path, hosts = "", tuple(_host(shown, one, form.port) for one in listed.split(","))
        service, db = _tail(shown, tail, form)
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return Address(
        shown=shown,
        hosts=hosts,
        path=path,
        service=service,
        is_tls=form.is_tls,
        db=_db(shown, options.get("db", db)),
        login=_login(options, "") | tls,
        sentinel_login=_login(options, "sentinel_") | tls,
    )


def masked(url: str) -> str:
    """The URL with every secret in it replaced by ***, also one whose special characters are not encoded."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Without a scheme nothing says where a password would stand.
        return url if "@" not in url else f"***@{url.rpartition('@')[2]}"
    account, at, place = rest.rpartition("@")
    if at:
        user, colon, _ = account.partition(":")
        account = f"{user}:***" if colon else account
    place, mark, query = place.partition("?")
    items = [
        f"{name}=***" if name in _SECRETS else item for item in query.split("&") for name in [item.partition("=")[0]]
    ]
    return f"{scheme}://{account}{at}{place}{mark}{'&'.join(items)}"


def _options(shown: str, query: str, form: _Form) -> dict[str, object]:
    known = {**_OPTIONS, **(_TLS_OPTIONS if form.is_tls else {})}
    options: dict[str, object] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise _refused(
                shown,
                f"{name} is not an option of this form (they are: {', '.join(known)}); timeouts, retries and the "
                "protocol are set by asyncrl, which must know them",
            )
        read, expected = known[name]
        try:
            options[name] = read(text)
        except (ValueError, KeyError):
            raise _refused(shown, f"{name} must be {expected}") from None
    return options


def _host(shown: str, text: str, port: int) -> tuple[str, int]:
    host, colon, digits = text.rpartition(":")
    if text.endswith("]") or not colon:  # an IPv6 address in brackets, or no port
        host, digits = text, str(port)
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or not digits.isdecimal() or (":" in host and not text.startswith("[")):
        raise _refused(shown, "a host is written host, host:port or [IPv6]:port")
    return unquote(host), int(digits)


def _tail(shown: str, tail: str, form: _Form) -> tuple[str, str]:
    """(service, database) behind the hosts."""
    if not form.names_service:
        return "", tail
    service, _, db = tail.partition("/")
    if not service:
        raise _refused(shown, "the service that Sentinel watches is missing behind the hosts: .../service")
    return unquote(service), db


def _db(shown: str, db: object) -> int:
    if db in (None, ""):
        return 0
    if not str(db).isdecimal():
        raise _refused(shown, "the database is a number")
    return int(str(db))


def _login(options: Mapping[str, object], prefix: str) -> dict[str, object]:
    own = {name: options[prefix + name] for name in ("username", "password") if prefix + name in options}
    return own | ({"client_name": options["client_name"]} if "client_name" in options else {})


def _refused(shown: str, why: str) -> ServerRefused:
    return ServerRefused(
        f"buffer.url = {shown}: {why}. Expected redis://, rediss:// or unix://, or redis+sentinel://host,host/service; "
        "special characters of a password percent-encoded."
    )
