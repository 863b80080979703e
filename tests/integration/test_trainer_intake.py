"""How the trainer waits for groups, against a real ledger: under which name, why, and what ends the wait."""

import asyncio
import threading

import pytest

from asyncrl import waits
from asyncrl.trainer.intake import FRESH, STALE, Intake, NoGroups, StepGroups
from asyncrl.trainer.lineage import Lineage
from buffer.versions import pack
from tests.support.tiny_policy import make_groups, write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_buffer, make_config, start_trainer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def intake_of(model_dir, directory, stop=None, **settings):
    """An intake of two groups a step on branch 1, at version 1 of limit 1, and its buffer."""
    config = make_config(directory, model_dir, schedule={"groups_per_step": 2}, staleness={"limit": 1, **settings})
    buffer = make_buffer(config)
    buffer.recover("nonce", None, number=0, limit=1, groups_per_version=2)
    run = start_trainer(config, buffer)
    run.parts.publisher.head = lambda: pack(1, 1)
    lineage = Lineage(branch=1, number=1, step=1, forks={1: (0, 0)}, digests={pack(1, 0): 0, pack(1, 1): 0})
    return Intake(run.parts, lineage, stop or threading.Event(), lambda: False, lambda missing: False), buffer


def group(model_dir, claim, version):
    return make_groups(model_dir, 1, GROUP_SIZE, seed=claim.ordinal, first_ordinal=claim.ordinal, version=version)[0]


def test_a_batch_waits_by_name_for_a_last_chance_group_in_flight(model_dir, tmp_path, monkeypatch):
    intake, buffer = intake_of(model_dir, tmp_path)
    held, *others = [buffer.reserve("worker-7") for _ in range(3)]
    buffer.renew(held, pack(1, 0))
    buffer.advance(1, 1, limit=1, groups_per_version=2)
    for claim in others:
        buffer.put(claim, group(model_dir, claim, pack(1, 1)))

    reasons, lease = [], intake._buffer.lease

    def wait_and_finish(*where, after, wait_s):
        # Whoever waits here has said what for; then the straggler comes in.
        if after is not None:
            reasons.append([(active.name, active.why) for active in waits.active()])
            if any(name == STALE for name, _ in reasons[-1]):
                buffer.put(held, group(model_dir, held, pack(1, 0)))
        return lease(*where, after=after, wait_s=wait_s)

    monkeypatch.setattr(intake._buffer, "lease", wait_and_finish)
    answer = asyncio.run(intake.next(can_free_bytes=lambda: False))
    assert isinstance(answer, StepGroups)
    assert [entry.ordinal for entry in answer.entries] == [held.ordinal, others[0].ordinal]
    assert [entry.lag for entry in answer.entries] == [1, 0]
    (reason,) = [why for name, why in reasons[-1] if name == STALE]
    assert f"ordinal {held.ordinal} held for" in reason
    assert "by worker-7" in reason
    assert "waited for 600 s at most (staleness.wait_deadline_s)" in reason
    assert waits.seconds()[STALE] > 0


def test_a_batch_that_is_simply_not_full_counts_no_second_as_waiting_for_stragglers(model_dir, tmp_path, monkeypatch):
    """B037: with limit 0 every group in flight is at its last chance, and the wait is still for fresh groups."""
    intake, buffer = intake_of(model_dir, tmp_path, limit=0)
    buffer.advance(1, 1, limit=0, groups_per_version=2)
    first, slow = [buffer.reserve("worker-7") for _ in range(2)]
    buffer.renew(slow, pack(1, 1))
    buffer.put(first, group(model_dir, first, pack(1, 1)))
    names, lease, before_s = [], intake._buffer.lease, dict(waits.seconds())

    def wait_and_finish(*where, after, wait_s):
        if after is not None:
            names.extend(active.name for active in waits.active())
            buffer.put(slow, group(model_dir, slow, pack(1, 1)))
        return lease(*where, after=after, wait_s=wait_s)

    monkeypatch.setattr(intake._buffer, "lease", wait_and_finish)
    answer = asyncio.run(intake.next(can_free_bytes=lambda: False))
    assert [entry.lag for entry in answer.entries] == [0, 0]
    assert FRESH in names
    assert STALE not in names
    assert waits.seconds().get(STALE, 0.0) == before_s.get(STALE, 0.0)


def test_under_drop_nobody_waits_for_a_straggler(model_dir, tmp_path):
    intake, buffer = intake_of(model_dir, tmp_path, policy="drop")
    held, *others = [buffer.reserve("worker-7") for _ in range(3)]
    buffer.renew(held, pack(1, 0))
    buffer.advance(1, 1, limit=1, groups_per_version=2)
    for claim in others:
        buffer.put(claim, group(model_dir, claim, pack(1, 1)))
    answer = asyncio.run(intake.next(can_free_bytes=lambda: False))
    assert [entry.ordinal for entry in answer.entries] == [claim.ordinal for claim in others]


def test_groups_that_became_too_old_are_handed_on_for_the_metrics(model_dir, tmp_path):
    intake, buffer = intake_of(model_dir, tmp_path, policy="drop")
    claims = [buffer.reserve("worker-7") for _ in range(3)]
    buffer.put(claims[0], group(model_dir, claims[0], pack(1, 0)))
    intake._lineage.number = 2
    buffer.advance(1, 2, limit=1, groups_per_version=2)
    for claim in claims[1:]:
        buffer.put(claim, group(model_dir, claim, pack(1, 1)))
    answer = asyncio.run(intake.next(can_free_bytes=lambda: False))
    assert [(left.ordinal, left.reason, left.outcome, left.lag) for left in answer.left] == [(0, "stale", "waiting", 2)]
    assert [entry.lag for entry in answer.entries] == [1, 1]


def test_a_stop_ends_the_wait(model_dir, tmp_path):
    stop = threading.Event()
    stop.set()
    intake, _ = intake_of(model_dir, tmp_path, stop)
    assert asyncio.run(intake.next(can_free_bytes=lambda: False)) == NoGroups("stop")
