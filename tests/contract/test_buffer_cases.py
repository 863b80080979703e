"""What went wrong in other buffers, with the small input of each case, on both stores (B003 to B020, B167, B215)."""

import pickle
from pathlib import Path

import pytest

from buffer import Claim, CorruptPayload, Leased, NotAdmitted, NotReady, TrajectoryError
from buffer.wire import encode
from tests.contract.conftest import NewRun
from tests.support.buffer_run import BufferRun
from tests.support.groups import group, group_for


def group_bytes(run: BufferRun, rewards: int = 2) -> int:
    """The size of what `make` puts."""
    return len(encode(group(0, 1, [run.version()], rewards=(1.0,) * rewards)))


def test_what_a_killed_trainer_took_is_given_to_the_next_once(new_run: NewRun) -> None:
    """B003: put a, b, c; the consumer takes two and dies; the next one sees all three, each exactly once."""
    run = new_run().recover(limit=2, per_version=2)
    run.make(3)
    assert [entry.ordinal for entry in run.lease(2)] == [0, 1]
    assert run.counts("leased", "ready") == (2, 1)
    run.recover(limit=2, per_version=2)  # another process: nothing of the first is left but the ledger
    assert run.counts("leased", "ready") == (0, 3), "the two were given back"
    assert [entry.ordinal for entry in run.lease(3)] == [0, 1, 2]
    assert isinstance(run.try_lease(1, step=run.number + 2), NotReady), "and nothing comes twice"


def test_a_claim_is_taken_over_by_a_process_of_another_name(new_run: NewRun) -> None:
    """B004: 'trainer-1234' takes one and dies; 'trainer-5678' gets it."""
    run = new_run().recover(per_version=1)
    lost = run.claim("trainer-1234")
    run.passes(61)
    run.buffer.sweep()
    found = run.claim("trainer-5678")
    assert (found.ordinal, found.attempt) == (lost.ordinal, 2)
    run.buffer.put(found, group_for(found, run.version()))
    assert [entry.ordinal for entry in run.lease()] == [lost.ordinal]


def test_a_full_buffer_refuses_the_next_and_evicts_nothing(new_run: NewRun) -> None:
    """B005: capacity 2; put two, take one without acknowledging it; the third waits, and what is held has its bytes."""
    run = new_run()
    size = group_bytes(run)
    run.set(max_bytes=2 * size, max_group_bytes=size)
    run.recover(limit=5, per_version=1)
    run.make(2)
    (held,) = run.lease(1)
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "bytes"
    run.recover(limit=5, per_version=1)  # reclaimed: with its payload, like the one that was never taken
    entries = run.lease(2)
    assert held.ordinal in [entry.ordinal for entry in entries]
    assert [run.buffer.fetch(entry).ordinal for entry in entries] == [0, 1]


def test_groups_are_handed_out_whole(new_run: NewRun) -> None:
    """B016: four prompts of four siblings; two takers of eight samples; every group is in one batch, with all four."""
    run = new_run().recover(limit=1, per_version=4)
    for _ in range(4):
        claim = run.claim()
        run.buffer.put(claim, group_for(claim, run.version(), rewards=(1.0, 0.0, 1.0, 0.0)))
    first, second = run.lease(2, step=1), run.lease(2, step=2)
    assert sorted(entry.ordinal for entry in (*first, *second)) == [0, 1, 2, 3]
    for entry in (*first, *second):
        assert len(run.buffer.fetch(entry).trajectories) == 4


def test_bytes_and_versions_are_two_budgets_with_their_own_names(new_run: NewRun) -> None:
    """B017: eight samples fit, groups have four, the limit is five versions: two are stored, the third waits for
    bytes, and after one was consumed exactly one more is admitted."""
    run = new_run()
    size = group_bytes(run, rewards=4)
    run.set(max_bytes=2 * size, max_group_bytes=size)
    run.recover(limit=5, per_version=1)
    claims = run.claims()
    assert len(claims) == 2, "the window of (5 + 1) * 1 groups is not what refuses"
    for claim in claims:
        run.buffer.put(claim, group_for(claim, run.version(), rewards=(1.0,) * 4))
    answer = run.buffer.reserve("w")
    assert isinstance(answer, NotAdmitted)
    assert answer.reason == "bytes"
    assert run.buffer.audit().resident_bytes == 2 * size
    run.checkpoint(run.train(1))
    assert len(run.claims()) == 1
    tight = new_run().recover(limit=0, per_version=2)
    assert len(tight.claims()) == 2
    refused = tight.buffer.reserve("w")
    assert isinstance(refused, NotAdmitted)
    assert refused.reason == "window"


def test_what_was_cleared_between_the_list_and_the_read_is_named_and_the_rest_is_read(new_run: NewRun) -> None:
    """B018: one lists eight, another clears some of them, the first reads."""
    run = new_run().recover(limit=0, per_version=8)
    run.make(8)
    entries = run.lease()
    run.attach()._payloads.delete([entries[2].key, entries[5].key])
    missing = [entry for entry in entries if entry.ordinal in (2, 5)]
    for entry in missing:
        with pytest.raises(CorruptPayload, match=rf"{entry.ordinal}\.1 is gone"):
            run.buffer.fetch(entry)
    rest = [run.buffer.fetch(entry).ordinal for entry in entries if entry not in missing]
    assert rest == [0, 1, 3, 4, 6, 7]
    run.buffer.give_back(run.branch, [2, 5], "corrupt_payload")
    assert run.counts("leased", "waiting") == (6, 2), "and they are made again"


def test_clearing_twice_or_what_never_was_is_no_error(new_run: NewRun) -> None:
    """B019: clear 1, 2 and 99, twice; 99 never existed."""
    run = new_run()
    run.set(max_attempts=1)
    run.recover(limit=2, per_version=2)
    run.make(4)
    run.lease(4)
    run.buffer.give_back(run.branch, [1, 2], "corrupt_payload")
    assert run.buffer.purge([1, 2, 99]) == (1, 2)
    assert run.buffer.purge([1, 2, 99]) == ()
    assert [letter.entry for letter in run.buffer.dead_letters()] == [None, None]
    payloads = run.buffer._payloads
    payloads.delete([f"payload:{run.name}:1.1:{'0' * 32}"] * 2)


def test_one_and_none_are_batches_too(new_run: NewRun) -> None:
    """B020: nothing put is nothing, one is a batch of one, a batch of none is empty."""
    run = new_run().recover(limit=1, per_version=1)
    assert run.lease(0) == ()
    assert run.counts("ready", "next_ordinal") == (0, 0)
    claim = run.claim()
    run.buffer.put(claim, group_for(claim, run.version(), rewards=(1.0,)))
    (entry,) = run.lease(1)
    assert (entry.tokens, entry.rewards) == ((5,), (1.0,))
    assert isinstance(run.buffer.fetch(entry).trajectories, tuple)
    assert run.lease(0, step=2) == ()
    with pytest.raises(TrajectoryError, match="at least one Trajectory"):
        group(0, 1, [run.version()], rewards=())


def test_a_new_run_sees_nothing_of_an_earlier_one_and_its_own_resume_sees_all(new_run: NewRun) -> None:
    """B167: run A leaves five groups; run B starts with another name; then A is resumed."""
    first, other = new_run().recover(limit=4, per_version=1), new_run().recover(limit=4, per_version=1)
    first.make(5)
    assert other.counts("ready", "leased", "next_ordinal") == (0, 0, 0)
    assert isinstance(other.try_lease(1), NotReady)
    claim = other.claim()
    assert claim.ordinal == 0
    first.recover(limit=4, per_version=1)
    assert first.counts("ready") == (5,)
    answer = first.try_lease(5)
    assert isinstance(answer, Leased)
    assert [entry.lag for entry in answer.entries] == [0] * 5, "and their age still counts"


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_pickle_under_a_payloads_key_runs_nothing_and_is_counted(
    new_run: NewRun, tmp_path: Path, compressed: bool
) -> None:
    """B215: whoever writes a pickle where a payload was gets a corrupt payload, and no code of his runs."""
    run, marker = new_run().recover(limit=0, per_version=1), tmp_path / "marker"
    run.make(1)
    (entry,) = run.lease()
    bomb = pickle.dumps(Bomb(marker))
    run.buffer._payloads.delete([entry.key])
    run.buffer._payloads.put(entry.key, b"\x28\xb5\x2f\xfd" + bomb if compressed else bomb)
    with pytest.raises(CorruptPayload):
        run.buffer.fetch(entry)
    assert not marker.exists()
    run.buffer.give_back(run.branch, [entry.ordinal], "corrupt_payload")
    assert run.buffer.audit().by_reason["corrupt_payload"] == 1
    run.buffer._payloads.delete([entry.key])
    again = run.claim()
    assert isinstance(again, Claim)
    assert again.ordinal == entry.ordinal
