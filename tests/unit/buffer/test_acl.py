"""The text of the ACL file, and the files that it is written to. What it grants and denies: test_buffer_redis_acl."""

import hashlib
import stat
from importlib.resources import files
from pathlib import Path

import pytest

from buffer import BufferError
from buffer.acl import ADMIN, ROLES, acl_file, write_acl
from buffer.keys import LEDGER_KEYS

USERS = [*ROLES, ADMIN]


def lines(text: str) -> dict[str, str]:
    return {line.split()[1]: line for line in text.splitlines()}


def test_there_is_one_user_for_each_role_and_the_default_one_is_off() -> None:
    text, passwords = acl_file("demo")
    assert [*lines(text)] == ["default", *USERS]
    assert lines(text)["default"] == "user default off resetchannels -@all"
    assert [*passwords] == USERS


def test_the_text_holds_hashes_and_no_password() -> None:
    text, passwords = acl_file("demo")
    for user, password in passwords.items():
        assert password not in text
        assert f" on #{hashlib.sha256(password.encode()).hexdigest()} " in lines(text)[user]
    assert len(set(passwords.values())) == len(USERS)
    assert all(len(password) >= 43 for password in passwords.values()), "256 random bits"
    assert passwords != acl_file("demo")[1]


def test_passwords_may_be_given_for_some_roles_and_only_for_roles() -> None:
    text, passwords = acl_file("demo", passwords={"host": "mine"})
    assert passwords["host"] == "mine"
    assert hashlib.sha256(b"mine").hexdigest() in lines(text)["host"]
    with pytest.raises(ValueError, match=r"for \['cook'\]; the roles are trainer, rollout, host, operator, admin"):
        acl_file("demo", passwords={"cook": "x"})


def test_users_of_several_runs_on_a_server_have_names_of_their_own() -> None:
    text, passwords = acl_file("demo", prefix="demo-")
    assert [*passwords] == [f"demo-{user}" for user in USERS]
    assert [*lines(text)][1:] == [*passwords]


@pytest.mark.parametrize("run", ["", "a b", "a}b", "a*b", "~*", "**"])
def test_a_name_that_would_be_a_pattern_is_refused(run: str) -> None:
    with pytest.raises(BufferError, match=r"run\.name"):
        acl_file(run)


def test_every_key_that_a_role_is_given_is_the_runs() -> None:
    text, _ = acl_file("demo")
    patterns = [
        word.rpartition("~")[2].rstrip(")") for user in ROLES for word in lines(text)[user].split() if "~" in word
    ]
    foreign = {p for p in patterns if not p.startswith(("{demo}:", "{demo.eval.*}:", "payload:demo", "w:demo:"))}
    assert foreign == {"asyncrl:probe"}
    assert {p.partition("}:")[2] for p in patterns if p.startswith("{demo.eval.*}:")} == set(LEDGER_KEYS)


def test_every_script_has_a_role_that_runs_it() -> None:
    names = {path.name.removesuffix(".lua") for path in files("buffer").joinpath("lua").iterdir() if "." in path.name}
    given = {name for roles in ROLES.values() for role in roles for name in role.scripts}
    assert names - given == {"types"}, "which anybody may run: it only reads"
    assert given <= names


def test_hosts_apart_leave_the_rollout_user_less() -> None:
    together, apart = (lines(acl_file("demo", hosts_apart=apart)[0]) for apart in (False, True))
    assert "~{demo}:w:held" in together["rollout"].replace("%R~", "")
    assert len(apart["rollout"]) < len(together["rollout"])
    assert apart["host"].split()[4:] == together["host"].split()[4:]


def test_files_are_for_their_owner_only_and_never_written_over(tmp_path: Path) -> None:
    users, secret = write_acl(tmp_path / "new", "demo")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (users, secret, tmp_path / "new")] == [0o600, 0o600, 0o700]
    listed = dict(line.split() for line in secret.read_text().splitlines())
    assert [*listed] == USERS
    for user, password in listed.items():
        assert f"#{hashlib.sha256(password.encode()).hexdigest()} " in lines(users.read_text())[user]
    before = users.read_bytes()
    secret.unlink()
    with pytest.raises(BufferError, match=r"users\.acl exist.*lock out"):
        write_acl(tmp_path / "new", "demo")
    assert users.read_bytes() == before
    assert not secret.exists()
