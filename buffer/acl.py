"""The ACL file of a run: one user per role, with the keys and commands that its calls need and no others.

    trainer    the buffer's trainer side and evaluations; publishes weights; a run on shared GPUs needs no other
    rollout    `asyncrl serve-rollout`: reserves, parks and puts groups; its hosts read and acknowledge weights
    host       a host by itself, where servers are not trusted with groups: no ledger but its report
    operator   looks, pauses, stops, plays dead letters again or purges them, sweeps
    admin      people: everything; no process of a run uses it. The user `default` is off

A rule is made of selectors: commands on some keys each. Keys that scripts name are granted to EVAL and EVALSHA, and
apart from that to reading and to writing, because Redis checks what a script calls against the same user: a script that
a role has no business with is refused, before it runs if it names a key that none of the role's own scripts names. The
limits: rights are by key, and the run record is one hash, so whoever may reserve could write any field of it; SCAN
shows names of keys of other runs, not what they hold.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from buffer.errors import BufferError
from buffer.keys import LEDGER_KEYS, check_run
from buffer.scripts import script
from buffer.server_checks import PROBE_KEY

ADMIN = "admin"

WEIGHT_LOG = (
    *("owner", "head", "records", "anchors", "merged", "nonces", "digests", "hints", "documents", "endpoints"),
    *("servers", "incarnations", "states", "held", "seen", "since", "notes", "vitals"),
    *("needs", "orders", "adoptions", "wish", "pin"),
)
"""What weightsync keeps beside the ledger, as {run}:w:<name>: versions, and the fleet. A test compares the two."""

_FLEET = ("servers", "incarnations", "states", "held", "seen", "since", "notes", "vitals")
_ASKED = ("orders", "adoptions", "hints")
_SAID_BY_HOSTS = (*_FLEET, "needs", "hints", "orders")

_ANYBODY = (
    "+ping +hello +quit +select +client|setname +client|setinfo +info +time +multi +exec +discard +script|load "
    "+asking +cluster|slots"
)
_SCRIPTS, _READ_SCRIPTS = "+eval +evalsha", "+eval_ro +evalsha_ro"
_STRUCTURES = "+@hash +@set +@sortedset +@stream"
_READ = f"{_STRUCTURES} -@write +type +get +mget"
_WRITE = f"{_STRUCTURES} -@dangerous +type +del +unlink"
_PAYLOADS_READ = "+get +getrange +strlen +mget +object|idletime"


@dataclass(frozen=True, slots=True)
class _Role:
    """What a role does.

    scripts: of the buffer, and only_named: ledger keys that these name and never write. payloads: commands on them.
    log_scripts: keys that its scripts on the weight log name, log_written, what those write, and log_dropped, of which
    they drop entries alone. parts: commands on the parts of weights, with the mode of their keys.
    """

    scripts: tuple[str, ...]
    only_named: frozenset[str] = frozenset()
    payloads: str = ""
    log_scripts: tuple[str, ...] = _FLEET
    log_written: tuple[str, ...] = ()
    log_dropped: tuple[str, ...] = ()
    parts: tuple[str, str] = ("", "")
    sweeps: bool = True


_WORKER = (
    "register",
    "reserve",
    "renew",
    "put",
    "park",
    "filter",
    "release",
    "report",
    "sweep",
    "named",
    "counts",
    "pass_rates",
)
_HOST_PARTS = ("%R~", "+get +mget +hgetall +smembers")

_TRAINER = _Role(
    scripts=(
        *_WORKER,
        "advance",
        "commit",
        "drop",
        "evaluate",
        "give_back",
        "lease",
        "lineage",
        "pause",
        "recover",
    ),
    payloads=f"{_PAYLOADS_READ} +set +unlink",
    log_scripts=WEIGHT_LOG,
    log_written=WEIGHT_LOG,
    parts=("~", "+get +mget +set +del +unlink +@hash +@set -@dangerous"),
)
_ROLLOUT = _Role(
    scripts=_WORKER,
    only_named=frozenset({"taken", "commons", "leased", "consumed"}),
    payloads=f"{_PAYLOADS_READ} +set +unlink",
    parts=_HOST_PARTS,
)
_HOST = _Role(
    scripts=("report",),
    only_named=frozenset({"run"}),
    log_scripts=_SAID_BY_HOSTS,
    log_written=_SAID_BY_HOSTS,
    parts=_HOST_PARTS,
    sweeps=False,
)
_OPERATOR = _Role(
    scripts=("pause", "resubmit", "purge", "sweep", "named", "counts"),
    payloads=f"{_PAYLOADS_READ} +unlink",
    log_scripts=(*_FLEET, *_ASKED, "needs"),
    log_written=_ASKED,
    log_dropped=(*_FLEET, "needs"),
)

ROLES: Mapping[str, tuple[_Role, ...]] = {
    "trainer": (_TRAINER,),
    "rollout": (_ROLLOUT, _HOST),
    "host": (_HOST,),
    "operator": (_OPERATOR,),
}


def acl_file(
    run: str, *, prefix: str = "", passwords: Mapping[str, str] | None = None, hosts_apart: bool = False
) -> tuple[str, dict[str, str]]:
    """The text of an ACL file (redis.conf: `aclfile /path`; then ACL LOAD), and the password of each user.

    Args:
        run: name of the run; ending in *, of all runs that begin so.
        prefix: put before the names of the users, for a server of several runs.
        passwords: by role, instead of random ones.
        hosts_apart: `rollout` may not acknowledge weights, because hosts have an address of their own with user `host`.
    Returns:
        The text holds no password, only their SHA-256. The passwords are not logged; `write_acl` keeps them in a file.
    Raises:
        BufferError: the run's name cannot stand in keys. ValueError: a password for a role that does not exist.
    """
    if run != "*":
        check_run(run.removesuffix("*"))
    given = dict(passwords or {})
    if unknown := set(given) - {*ROLES, ADMIN}:
        raise ValueError(f"passwords are given for {sorted(unknown)}; the roles are {', '.join([*ROLES, ADMIN])}.")
    secret = {role: given.get(role) or secrets.token_urlsafe(32) for role in (*ROLES, ADMIN)}
    roles = {**ROLES, "rollout": (_ROLLOUT,)} if hosts_apart else ROLES
    rules = {role: _rules(run, parts) for role, parts in roles.items()} | {ADMIN: "~* &* +@all"}
    lines = ["user default off resetchannels -@all"]
    lines += [f"user {prefix}{role} on #{_hash(secret[role])} {rule}" for role, rule in rules.items()]
    return "\n".join(lines) + "\n", {prefix + role: password for role, password in secret.items()}


def write_acl(directory: Path, run: str, *, prefix: str = "", hosts_apart: bool = False) -> tuple[Path, Path]:
    """Write `users.acl`, for the server, and `users.passwords`, one `user password` a line, for people; both mode 0600.

    Raises:
        BufferError: one of them exists; a new one would lock out whoever uses the old passwords.
        OSError: the directory cannot be written.
    """
    text, passwords = acl_file(run, prefix=prefix, hosts_apart=hosts_apart)
    listed = "".join(f"{user} {password}\n" for user, password in passwords.items())
    files = {directory / "users.acl": text, directory / "users.passwords": listed}
    if there := [str(path) for path in files if path.exists()]:
        raise BufferError(
            f"{' and '.join(there)} exist. New passwords would lock out the processes that use those; delete them "
            "first if that is what you want."
        )
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, content in files.items():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(content)
    users, secret = files
    return users, secret


def _rules(run: str, roles: Iterable[_Role]) -> str:
    roles = tuple(roles)
    scan = "+scan" if any(role.sweeps for role in roles) else ""
    selectors = {rule: None for role in roles for rule in _selectors(run, role)}  # each once, in order
    return " ".join(("resetchannels -@all", _ANYBODY, scan, *selectors)).replace("  ", " ")


def _selectors(run: str, role: _Role) -> list[str]:
    named = {key for name in role.scripts if not script(name).only_reads for key in script(name).keys}
    log = [f"{{{run}}}:w:{name}" for name in WEIGHT_LOG]
    payloads = [f"payload:{run}:*", f"payload:{run}.eval.*:*"]
    return [
        _selector(f"{_SCRIPTS} +unlink", "~", [PROBE_KEY]),
        _selector(_SCRIPTS, "~", _ledger(run, named)),
        _selector(_READ_SCRIPTS, "%R~", _ledger(run, LEDGER_KEYS)),
        _selector(_READ, "%R~", _ledger(run, LEDGER_KEYS)),
        _selector(_WRITE, "~", _ledger(run, named - role.only_named)),
        *([_selector(role.payloads, "~", payloads)] if role.payloads else []),
        _selector(_SCRIPTS, "~", [f"{{{run}}}:w:{name}" for name in role.log_scripts]),
        _selector(_READ, "%R~", log),
        *(
            [_selector(f"{_WRITE} +set +get", "~", [f"{{{run}}}:w:{name}" for name in role.log_written])]
            if role.log_written
            else []
        ),
        *([_selector("+hdel", "~", [f"{{{run}}}:w:{name}" for name in role.log_dropped])] if role.log_dropped else []),
        *([_selector(role.parts[1], role.parts[0], [f"w:{run}:*"])] if role.parts[1] else []),
    ]


def _ledger(run: str, names: Iterable[str]) -> list[str]:
    """The keys of a run and of its evaluations."""
    names = set(names)
    ordered = [name for name in LEDGER_KEYS if name in names]
    return [f"{{{owner}}}:{name}" for owner in (run, f"{run}.eval.*") for name in ordered]


def _selector(commands: str, mode: str, patterns: Iterable[str]) -> str:
    return f"({commands} {' '.join(mode + pattern for pattern in patterns)})"


def _hash(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()
