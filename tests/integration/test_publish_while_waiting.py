"""A failed publish and a filtered group: claims wait for the version that is missing, so it is published again."""

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from buffer import Claim
from buffer.errors import Fenced
from buffer.versions import pack
from tests.support.tiny_policy import make_groups, write_tiny_model
from tests.support.trainer_run import GROUP_SIZE, make_buffer, make_config, start_trainer
from weightsync.errors import PublishFailed

WAIT_S = 12.0


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


class ManyWorkers:
    """Reserves all that admission grants at once; each claim starts as soon as head is new enough for it."""

    def __init__(self, run, model_dir):
        self.run, self.model_dir, self.stop, self.error = run, model_dir, threading.Event(), None
        self.held: dict[int, Claim] = {}
        self.is_failing = threading.Event()

    def play(self):
        try:
            self._play()
        except BaseException as error:  # shown by the test, in whose thread it matters
            self.error = error

    def _play(self):
        buffer, log = self.run.parts.buffer, self.run.parts.log
        hints = buffer.hints()
        while not self.stop.is_set():
            while isinstance(claim := buffer.reserve("many"), Claim):
                self.held[claim.ordinal] = claim
            head = log.head()
            for ordinal, claim in sorted(self.held.items()):
                if head is None or not claim.may_start_on(head.version):
                    continue
                if ordinal >= 2 and not self.is_failing.is_set():
                    continue  # 2 and 3 are slow: still in flight when version 1 is trained
                group = self.group(claim, head.version)
                del self.held[ordinal]
                with suppress(Fenced):
                    buffer.put(claim, group, filtered="zero_variance" if ordinal == 3 else None)
            hints.wait(0.05)

    def group(self, claim, version):
        (group,) = make_groups(self.model_dir, 1, GROUP_SIZE, seed=claim.ordinal, first_ordinal=claim.ordinal)
        digest = self.run.parts.log.digest_of(version)
        trajectories = tuple(
            replace(
                t,
                rows=tuple(
                    replace(r, spans=tuple(replace(s, version=version, digest=digest) for s in r.spans)) for r in t.rows
                ),
            )
            for t in group.trajectories
        )
        return replace(group, attempt=claim.attempt, trajectories=trajectories)


def test_a_failed_publish_and_a_filtered_group_do_not_stop_the_run(model_dir, tmp_path):
    config = make_config(
        tmp_path,
        model_dir,
        schedule={"groups_per_step": 2},
        staleness={"limit": 1, "policy": "drop"},
        trainer={"steps": 2, "lease_wait_s": WAIT_S},
    )
    run = start_trainer(config, make_buffer(config))
    publish, failed = run.parts.publisher.publish, []
    workers = ManyWorkers(run, model_dir)

    def failing(version, *staged):
        if version == pack(1, 1) and not failed:
            failed.append(version)  # once
            threading.Timer(0.5, workers.is_failing.set).start()  # after `advance`: claims of the next version are out
            raise PublishFailed("the transport is full")
        return publish(version, *staged)

    run.parts.publisher.publish = failing
    thread = threading.Thread(target=workers.play, daemon=True)
    thread.start()
    try:
        outcome = run.go()
    finally:
        workers.stop.set()
        thread.join(10)
    assert workers.error is None
    assert outcome.step == 2
