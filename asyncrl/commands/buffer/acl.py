"""Write an ACL file for the run's Redis: one user per role, who may do what the role's commands do, and no more.

DIRECTORY gets users.acl, for the server, which holds only hashes, and users.passwords, mode 0600, for people. No
password is printed unless --show asks for it. Nothing is changed on the server: what to do there is printed.

Exit codes: 0 written; 3 a file is there already: new passwords would lock out whoever uses the old ones.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from asyncrl.commands.config_arguments import add_config_arguments, load_from
from asyncrl.commands.tables import facts
from asyncrl.config import Config

USES: Mapping[str, str] = {
    "trainer": "asyncrl train",
    "rollout": "asyncrl serve-rollout; asyncrl buffer import",
    "host": "the hosts of inference servers, where they have an address of their own",
    "operator": "asyncrl audit, stop, buffer (all but import)",
    "admin": "people, for the server itself; no process of a run",
}
"""Role -> the commands that connect as it."""
SOMEWHERE = "rediss://HOST:6379"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_config_arguments(parser, subject=("directory", Path, "where to write; made if it does not exist"))
    parser.add_argument("--prefix", default="", help="before the names of the users, for a server of several runs")
    parser.add_argument(
        "--hosts-apart", action="store_true", help="workers may not acknowledge weights: hosts have a user"
    )
    parser.add_argument("--show", action="store_true", help="print addresses with their passwords")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    """Write the files and say how to use them."""
    from buffer.acl import write_acl

    config = load_from(args).config
    users, passwords = write_acl(
        args.directory.absolute(), config.run.name, prefix=args.prefix, hosts_apart=args.hosts_apart
    )
    known = dict(line.split(" ", 1) for line in passwords.read_text().splitlines())
    urls = {role: url_of(config, args.prefix + role, known[args.prefix + role] if args.show else "") for role in USES}
    if args.json:
        print(json.dumps({"acl": str(users), "passwords": str(passwords), "urls": urls}))
    else:
        print(render(users, passwords, urls, show=args.show))
    return 0


def url_of(config: Config, user: str, password: str) -> str:
    """The address of the run's Redis for a user; PASSWORD stands for one that is not shown."""
    from buffer.redis_store.address import masked

    given = config.buffer.url
    # Masked: the query may hold passwords too, and not those of this user.
    parts = urlsplit(SOMEWHERE if given is None else masked(given.get_secret_value()))
    place = parts.netloc.rpartition("@")[2]
    query = f"?{parts.query}" if parts.query else ""
    return (
        f"{parts.scheme}://{quote(user, safe='')}:{quote(password, safe='') or 'PASSWORD'}@{place}{parts.path}{query}"
    )


def render(users: Path, passwords: Path, urls: Mapping[str, str], *, show: bool) -> str:
    """What to do now."""
    steps = [
        ("on the server", f"copy {users} there, name it in redis.conf: aclfile /path/to/{users.name}, and restart it"),
        ("passwords", f"{passwords}, readable by you only; the server's file holds none"),
        (
            "then",
            "give each command the address of its role in ASYNCRL_REDIS_URL" + ("" if show else ", with its PASSWORD"),
        ),
    ]
    return "\n\n".join((facts(steps), facts((role, f"{url}\n{USES[role]}") for role, url in urls.items())))
