"""Every version log: two claimants of one branch, merged deltas, and what a lost tail undoes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.test_version_log import ORIGIN, begun, record
from tests.support.version_logs import LogHome
from weightsync.errors import BaseMismatch, Fenced
from weightsync.log import VersionLog
from weightsync.log.records import MergedDelta, Part, Upload
from weightsync.versions import pack


@pytest.fixture(params=["directory", "redis"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogHome]:
    found = LogHome(tmp_path, None if request.param == "directory" else request.getfixturevalue("ledger_server"))
    yield found
    found.close()


def merged(base: int, version: int, nonce: str = "m") -> MergedDelta:
    return MergedDelta(Upload(version, base, nonce, "plan", (Part(0, 0, 9), Part(1, 7, 1 << 33))), (3, 5), 17)


def test_a_branch_that_is_claimed_again_is_its_last_claimants(home: LogHome) -> None:
    """A restart that was given branch 1 once more, and the paused process that had it before wakes up."""
    paused, restarted = home.open(), home.open()
    begun(paused).flip(0, record(pack(1, 1), 0, nonce="first"))
    restarted.claim(1)
    anchor = Upload(pack(1, 1), pack(1, 1), "a", "plan", ())
    late: list[Callable[[], None]] = [
        lambda: paused.flip(pack(1, 1), record(pack(1, 2), pack(1, 1), nonce="old bits")),
        lambda: paused.commit_anchor(1, anchor),
        lambda: paused.commit_merged(1, merged(0, pack(1, 1))),
        lambda: paused.prune(1, [0], []),
        lambda: paused.confirm(1),
    ]
    for call in late:
        with pytest.raises(Fenced, match=r"branch 1 owns the log.*of the same branch"):
            call()
    restarted.confirm(1)
    restarted.flip(pack(1, 1), record(pack(1, 2), pack(1, 1), nonce="new bits"))
    with pytest.raises(Fenced):
        paused.flip(pack(1, 1), record(pack(1, 2), pack(1, 1), nonce="old bits"))
    head = home.open().head()
    assert head is not None
    assert head.nonce == "new bits"


def test_a_late_flip_of_the_same_version_and_digest_is_no_repeat_unless_its_nonce_is(home: LogHome) -> None:
    log = begun(home.open())
    taken = record(pack(1, 1), 0, nonce="ours")
    log.flip(0, taken)
    log.flip(0, taken)
    for digest in (taken.digest, 99):
        with pytest.raises(BaseMismatch, match=r"head is 1\.1"):
            log.flip(0, record(pack(1, 1), 0, nonce="another upload", digest=digest))
    assert log.head() == taken


def test_a_claim_is_repeated_by_who_made_it_and_its_flips_go_on(home: LogHome) -> None:
    log = begun(home.open())
    log.claim(1)
    log.confirm(1)
    log.flip(0, record(pack(1, 1), 0))
    log.claim(2)
    log.flip(pack(1, 1), record(pack(2, 1), pack(1, 1)))
    with pytest.raises(Fenced):
        log.confirm(1)


def test_who_claimed_nothing_is_judged_by_the_branch(home: LogHome) -> None:
    begun(home.open(), branch=2)
    network = home.open()
    network.confirm(2)
    with pytest.raises(Fenced):
        network.flip(0, record(pack(1, 1), 0))
    network.flip(0, record(pack(2, 1), 0))


def test_a_claim_that_was_lost_with_the_tail_comes_back_with_the_flip_of_who_made_it(home: LogHome) -> None:
    old, new, other = home.open(), home.open(), home.open()
    begun(old)
    before = home.save()
    new.claim(2)
    home.rewind(before)
    assert home.open().owner() == 1
    new.confirm(2)
    new.flip(0, record(pack(2, 0), 0))
    with pytest.raises(Fenced):
        old.flip(pack(2, 0), record(pack(1, 9), pack(2, 0)))
    assert home.open().owner() == 2
    new.confirm(2)
    other.claim(2)
    with pytest.raises(Fenced):
        new.confirm(2)


def test_a_flip_that_was_lost_with_the_tail_is_undone_and_its_version_may_be_flipped_again(home: LogHome) -> None:
    log = begun(home.open())
    log.flip(0, record(pack(1, 1), 0))
    before = home.save()
    log.flip(pack(1, 1), record(pack(1, 2), pack(1, 1), nonce="lost", anchor=True))
    log.commit_merged(1, merged(0, pack(1, 2)))
    home.rewind(before)
    assert log.digest_of(pack(1, 2)) is None
    assert log.record(pack(1, 2)) is None
    again = record(pack(1, 2), pack(1, 1), nonce="again", digest=77)
    log.flip(pack(1, 1), again)
    assert log.records() == [ORIGIN, record(pack(1, 1), 0), again]
    assert log.digest_of(pack(1, 2)) == 77


def test_a_merged_delta_stands_beside_the_version_at_which_it_ends(home: LogHome) -> None:
    log = three(home)
    for found in (merged(0, pack(1, 2)), merged(pack(1, 1), pack(1, 2), "n"), merged(0, pack(1, 2))):
        log.commit_merged(1, found)
    both = (merged(0, pack(1, 2)), merged(pack(1, 1), pack(1, 2), "n"))
    found = home.open()
    assert [entry.merged for entry in found.records()] == [(), (), both, ()]
    second = found.record(pack(1, 2))
    assert second is not None
    assert second.merged == both
    assert [upload.nonce for upload in second.uploads()] == [f"n{pack(1, 2)}", "m", "n"]
    log.commit_merged(1, merged(0, pack(1, 2), "anew"))
    again = log.record(pack(1, 2))
    assert again is not None
    assert again.merged[0].upload.nonce == "anew"


def test_a_merged_delta_needs_both_its_versions(home: LogHome) -> None:
    log = three(home)
    for base, version in ((0, pack(1, 9)), (pack(1, 7), pack(1, 3))):
        with pytest.raises(BaseMismatch):
            log.commit_merged(1, merged(base, version))
    log.claim(2)
    with pytest.raises(Fenced):
        log.commit_merged(1, merged(0, pack(1, 2)))
    assert all(not entry.merged for entry in log.records())


def test_merged_deltas_go_by_name_and_with_either_of_their_versions(home: LogHome) -> None:
    log = three(home)
    for base, version in ((0, pack(1, 2)), (pack(1, 1), pack(1, 3)), (0, pack(1, 3)), (pack(1, 2), pack(1, 3))):
        log.commit_merged(1, merged(base, version))
    log.prune(1, [], [], [(pack(1, 1), pack(1, 3)), (5, 6)])
    log.prune(1, [], [], [(pack(1, 1), pack(1, 3))])
    assert [[m.base for m in entry.merged] for entry in log.records()] == [[], [], [0], [0, pack(1, 2)]]
    log.prune(1, [0], [])
    assert [[m.base for m in entry.merged] for entry in log.records()] == [[], [], [pack(1, 2)]]


def three(home: LogHome) -> VersionLog:
    """Versions 0.0 to 1.3."""
    log, base = begun(home.open()), 0
    for number in (1, 2, 3):
        log.flip(base, record(pack(1, number), base))
        base = pack(1, number)
    return log
