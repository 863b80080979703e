"""A version on its way while the next step trains: the bits of its own step, one at a time, nothing told too early."""

import threading

import pytest

from asyncrl.errors import FencedOut, WaitTimeout
from asyncrl.trainer import loop, publishing
from asyncrl.trainer.flight import Flight
from buffer.versions import label, pack
from tests.support.tiny_policy import write_tiny_model
from tests.support.trainer_run import make_buffer, make_config, rollout_for, start_trainer
from weightsync.buckets import BucketPlan
from weightsync.manifest import Manifest
from weightsync.shard import ShardWords
from weightsync.snapshot import Snapshot

SOON_S = 30.0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def trainer(directory, model_dir, *, limit=2, steps=3, buffer=None, checkpoint=None, **weightsync):
    checkpoint = {"every_steps": 100, "keep_last": 10, **(checkpoint or {})}
    config = make_config(
        directory, model_dir, staleness={"limit": limit}, trainer={"steps": steps, "checkpoint": checkpoint}
    )
    config = config.model_copy(update={"weightsync": config.weightsync.model_copy(update=weightsync)})
    return start_trainer(config, buffer or make_buffer(config))


def hold(run, version, until, before=lambda: None):
    """Publish `version` only when `until` is set; [True] once it was in time."""
    publish, in_time = run.parts.publisher.publish, []

    def held(asked, *staged):
        if asked == version:
            in_time.append(until.wait(SOON_S))
            before()
        return publish(asked, *staged)

    run.parts.publisher.publish = held
    return in_time


def after_steps(run, what):
    """Call `what(n)` when step n has changed the weights."""
    step, done = run.parts.learner.step, []

    def stepped(batch):
        tally = step(batch)
        done.append(1)
        what(len(done))
        return tally

    run.parts.learner.step = stepped


def digest_of(run, model_dir):
    plan = BucketPlan.whole(Manifest.from_model_dir(model_dir), 1 << 16)
    return Snapshot.capture(plan, 0, 0, ShardWords(run.parts.policy.shards()).of).digest()


def test_a_version_has_the_weights_of_its_own_step_although_the_next_one_is_trained_meanwhile(model_dir, tmp_path):
    run, second, digests = trainer(tmp_path, model_dir), threading.Event(), {}

    def stepped(number):
        digests[number] = digest_of(run, model_dir)
        if number == 2:
            second.set()

    after_steps(run, stepped)
    in_time = hold(run, pack(1, 1), second)
    with rollout_for(run).running():
        run.go()
    assert in_time == [True]  # step 2 did not wait for version 1
    log = run.parts.log
    assert {number: log.digest_of(pack(1, number)) for number in digests} == digests
    assert len(set(digests.values())) == 3
    rows = [values for _, _, values in run.sink.lines if "actor/pg_loss" in values]
    assert [row["perf/publish_blocks_step_share"] >= 0 for row in rows] == [True] * 3
    assert rows[1]["timing_s/publish_beside"] > 0
    assert rows[1]["timing_s/publish/capture"] > 0


@pytest.mark.parametrize(("limit", "beside"), [(0, True), (2, False)])
def test_where_nothing_is_beside_every_step_finds_its_version_at_head_and_nothing_is_copied(
    model_dir, tmp_path, limit, beside
):
    run = trainer(tmp_path, model_dir, limit=limit, publish_beside=beside)
    lease, found = run.parts.buffer.lease, []

    def leasing(branch, number, *arguments, **named):
        found.append((run.parts.publisher.head(), pack(branch, number)))
        return lease(branch, number, *arguments, **named)

    def copied():
        pytest.fail("captured")

    run.parts.buffer.lease, run.parts.publisher.capture = leasing, copied
    with rollout_for(run).running():
        assert run.go().reason == "finished"
    assert all(head == trained for head, trained in found)
    assert run.parts.log.head().version == pack(1, 3)


def test_the_wait_for_a_version_that_never_arrives_has_a_name_a_reason_and_an_end(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "LEAVE_S", 0.1)
    run, never = trainer(tmp_path, model_dir, publish_deadline_s=0.5), threading.Event()
    hold(run, pack(1, 1), never)
    with rollout_for(run).running(), pytest.raises(WaitTimeout) as late:
        run.go()
    never.set()
    assert late.value.name == "trainer waits for the version before"
    assert "version 1.1 is on its way for" in str(late.value)
    assert "weightsync.publish_deadline_s is 0.5" in str(late.value)


def test_a_trainer_that_is_replaced_while_a_version_is_on_its_way_stops(model_dir, tmp_path):
    run, second = trainer(tmp_path, model_dir, steps=20), threading.Event()
    after_steps(run, lambda number: second.set() if number == 2 else None)
    hold(run, pack(1, 1), second, before=lambda: run.parts.log.claim(7))
    with rollout_for(run).running(), pytest.raises(FencedOut, match="branch 7 owns the log"):
        run.go()
    assert run.parts.log.head().version == pack(1, 0)


def test_the_last_version_is_reported_although_its_pruning_ends_after_it_is_head(model_dir, tmp_path, monkeypatch):
    run, over = trainer(tmp_path, model_dir), threading.Event()
    prune, wait, export = run.parts.publisher.prune, Flight.wait, loop.export_policy

    def pruning():
        if run.parts.log.head().version == pack(1, 3):
            assert over.wait(SOON_S)  # until somebody waits for it, or it is too late
        return prune()

    def waiting(flight, deadline_s):
        if run.parts.log.head().version == pack(1, 3):
            over.set()
        return wait(flight, deadline_s)

    def exporting(*arguments):
        over.set()
        return export(*arguments)

    run.parts.publisher.prune = pruning
    monkeypatch.setattr(Flight, "wait", waiting)
    monkeypatch.setattr(loop, "export_policy", exporting)
    with rollout_for(run).running():
        outcome = run.go()
    assert outcome.facts["versions"] == 4
    told = [values["weightsync/version"] for _, _, values in run.sink.lines if "weightsync/version" in values]
    assert told == [pack(1, number) for number in range(4)]


class Killed(BaseException):
    """Ends a trainer as suddenly as SIGKILL does: nothing of it catches this."""


def test_a_checkpoint_says_nothing_of_a_version_on_its_way_and_a_resume_goes_on_from_head(model_dir, tmp_path):
    """Saved while 1.1 is on its way; the trainer dies, and 1.1 becomes head after its death, as a late request does."""
    # Written before the loop goes on, which dies with it.
    at_once = {"every_steps": 1, "asynchronous": False}
    run, saved, states = trainer(tmp_path, model_dir, checkpoint=at_once), threading.Event(), []
    save = run.parts.checkpoints.save

    def saving(name, policy, state, ranks, **parts):
        save(name, policy, state, ranks, **parts)
        states.append((label(run.parts.publisher.head()), sorted(state["digests"]), state["number"]))
        raise Killed

    run.parts.checkpoints.save = saving
    in_time = hold(run, pack(1, 1), saved)
    with rollout_for(run).running(), pytest.raises(Killed):
        run.go()
    [(head, known, number)] = states
    # 0.0 is known if a worker had tokens of it before 1.0 was there.
    assert (head, [version for version in known if version != "0.0"], number) == ("1.0", ["1.0"], 1)
    watch = run.parts.log.watch(("head",))
    saved.set()
    while run.parts.log.head().version != pack(1, 1):
        assert watch.wait(SOON_S)
    resumed = trainer(tmp_path, model_dir, checkpoint=at_once, buffer=run.parts.buffer)
    with rollout_for(resumed).running():
        outcome = resumed.go(resume=True)
    assert in_time == [True]
    assert outcome.version == pack(2, 3)
    records = {record.version: record for record in resumed.parts.log.records()}
    assert records[pack(2, 1)].base == pack(1, 1)
    assert records[pack(2, 1)].digest == records[pack(1, 1)].digest
    assert resumed.parts.buffer.audit().ok
    assert resumed.parts.buffer.counts()["consumed"] == 12
