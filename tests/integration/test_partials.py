"""Groups that change hands, over a real Redis and a local server: worker processes are stopped, told to hurry and
killed amid answers, and the next one goes on from their tokens."""

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncrl.config import Config
from asyncrl.rollout.seeds import sampling_seed
from buffer import Group, ReplayBuffer, Trajectory
from buffer.answers import Claim, Leased
from buffer.books import IN_FLIGHT
from buffer.partials import PartialEpisode
from buffer.versions import label, pack
from tests.support.inference_servers import InferenceServer, inference_server, wait_for
from tests.support.redis_server import RedisServer, running_redis
from tests.support.tiny_policy import write_tiny_model
from tests.support.worker_process import WorkerProcess, worker_config, worker_process
from weightsync.log import open_log

GROUP, LIMIT, PER_VERSION, SLOTS = 4, 4, 50, 8
TURN = 400  # tokens; the model's answers are as long as its random weights want them
FIRST, SECOND = pack(1, 0), pack(1, 1)
Parked = dict[int, tuple[PartialEpisode, ...]]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model_dir: Path) -> Iterator[InferenceServer]:
    with inference_server("local", model_dir) as started:
        yield started


class Run:
    """A run with its server; the test is its trainer and its host."""

    def __init__(self, config: Config, redis: RedisServer, server: InferenceServer, directory: Path) -> None:
        self.config, self.redis, self.server, self.directory = config, redis, server, directory
        self.buffer = ReplayBuffer.connect(redis.url, config.run.name, config.buffer, config.staleness)
        self.buffer.recover("nonce", None, number=0, limit=LIMIT, groups_per_version=PER_VERSION)
        self.log = open_log(redis.url, config.run.name)
        self.log.register("server-0", "life", server.url, lease_s=600.0)
        self.serve(FIRST)

    def serve(self, version: int) -> None:
        """Have the server answer under a version, and say so."""
        body = {"new_version": label(version), "abort_all_requests": False}
        assert self.server.post("/update_weight_version", body).is_success
        self.log.put_ack("server-0", "life", version, 10 * version, "serving")

    def worker(self, name: str) -> Any:
        return worker_process(self.config, self.redis.url, self.directory / f"{name}.log")

    def pause_amid_answers(self, worker: WorkerProcess) -> None:
        """Stop the server at a moment when it has begun answers; they keep the tokens that they have."""
        worker.until("its first group", lambda: self.buffer.counts()["in_flight"] > 0)

        def paused() -> bool:
            self.server.pause("in_place")
            if self.server.running()[0]:  # what only waits has no token
                self.server.pause("retract")  # so that aborts are answered while it is paused
                return True
            self.server.resume()
            return False

        worker.until("an answer is under way", paused)

    def is_parked(self) -> bool:
        """Whether something is parked of a group in flight."""
        return any(card.state == IN_FLIGHT and card.parked_key for card in self.buffer._store.books().cards.values())

    def missed_it(self, worker: WorkerProcess) -> bool:
        """The groups that were parked are finished, and the others have no token yet: go on, and stop again."""
        self.server.resume()
        self.pause_amid_answers(worker)
        return False

    def parked(self) -> Parked:
        """What is parked, by ordinal; everything is given back as it was."""
        found, claims = {}, []
        for _ in range(self.buffer.counts()["waiting"]):
            claim = self.buffer.reserve("reader")
            assert isinstance(claim, Claim)
            claims.append(claim)
            partials = self.buffer.fetch_partials(claim)
            if partials is not None:
                found[claim.ordinal] = partials.episodes
        for claim in claims:
            self.buffer.abandon(claim)
        assert self.buffer.audit().tokens.problems() == []
        return found

    def finished(self, parked: Parked) -> dict[int, Group]:
        """The groups of the next worker, up to the last parked one."""
        with self.worker("second") as second:
            count, hints, leased = max(parked) + 1, self.buffer.hints("ready"), None
            while not isinstance(leased := self.buffer.lease(1, 0, 0, count), Leased):
                second.until("the groups are in", lambda: hints.wait(0.5) or True)
            assert second.stop(signal.SIGTERM) == 0, second.text()
        facts = self.buffer.reports()[second.name]
        assert facts["partials_resumed"] == len(parked)
        assert facts["tokens_resumed"] == sum(one.trajectory.num_sampled for ones in parked.values() for one in ones)
        assert self.buffer.audit().ok
        return {entry.ordinal: self.buffer.fetch(entry) for entry in leased.entries}

    def uncut(self, ordinal: int, episode: int, trajectory: Trajectory) -> list[int]:
        """What the server answers to the episode's prompt in one go."""
        row = trajectory.rows[0]
        body = {
            "input_ids": row.token_ids[: row.num_prompt_tokens].tolist(),
            "sampling_params": {
                "max_new_tokens": TURN,
                "temperature": 1.0,
                "sampling_seed": sampling_seed(self.config.run.seed, "train", ordinal, episode),
            },
        }
        ids: list[int] = self.server.post("/generate", body).json()["output_ids"]
        return ids


@contextmanager
def running(
    name: str,
    redis: RedisServer,
    server: InferenceServer,
    model_dir: Path,
    directory: Path,
    *,
    stop_timeout_s: float = 40.0,
    **partials: float,
) -> Iterator[Run]:
    """A run whose server serves the first version."""
    config = worker_config(
        directory,
        name,
        model_dir,
        rollout={"n": GROUP, "max_new_tokens": TURN, "slots": SLOTS, "partials": partials},
        buffer={"claim_s": 3.0, "renew_every_s": 0.5},
        staleness={"limit": LIMIT, "order": "ordinal"},
        schedule={"groups_per_step": PER_VERSION},
        inference={"context_length": 512},
        cluster={"stop_timeout_s": stop_timeout_s},
    )
    run = Run(config, redis, server, directory)
    with closing(run.buffer):
        yield run
    server.resume()


def unfinished(parked: Parked) -> list[tuple[int, PartialEpisode]]:
    found = [(ordinal, one) for ordinal, episodes in parked.items() for one in episodes if not one.done]
    assert found, "what the server had of the answers came back"
    return found


def assert_kept(parked: PartialEpisode, trajectory: Trajectory) -> None:
    """Tokens, logprobs, versions and digests of what was parked are at the beginning, bit for bit."""
    (before,), (after,) = parked.trajectory.rows, trajectory.rows
    for name in ("token_ids", "mask", "logprobs"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name)[: len(before.token_ids)])
    drawn = [[(span.version, span.digest)] * span.num_tokens for row in (before, after) for span in row.spans]
    flat = [pair for run in drawn for pair in run]
    assert flat[: before.num_sampled] == flat[before.num_sampled :][: before.num_sampled]


def test_after_sigterm_amid_answers_the_next_worker_goes_on_from_the_tokens(
    redis: RedisServer, server: InferenceServer, model_dir: Path, tmp_path: Path
) -> None:
    with running("stopped", redis, server, model_dir, tmp_path, stop_timeout_s=12.0) as run:
        with run.worker("first") as first:
            run.pause_amid_answers(first)
            assert first.stop(signal.SIGTERM) == 0, first.text()
        assert run.buffer.counts()["in_flight"] == 0
        parked = run.parked()
        server.resume()
        run.serve(SECOND)
        groups = run.finished(parked)
        for ordinal, one in unfinished(parked):
            trajectory = groups[ordinal].trajectories[one.index]
            assert_kept(one, trajectory)
            assert [span.version for span in trajectory.rows[0].spans] == [FIRST, SECOND]
        for ordinal, episodes in parked.items():
            assert all(groups[ordinal].trajectories[one.index] == one.trajectory for one in episodes if one.done)


def test_a_preemption_notice_parks_at_once_and_what_goes_on_equals_what_was_never_cut(
    redis: RedisServer, server: InferenceServer, model_dir: Path, tmp_path: Path
) -> None:
    with running("preempted", redis, server, model_dir, tmp_path) as run:
        with run.worker("first") as first:
            run.pause_amid_answers(first)
            assert first.stop(signal.SIGUSR1) == 0, first.text()
        assert "in a hurry" in first.text()
        parked = run.parked()
        server.resume()
        groups = run.finished(parked)
        for ordinal, one in unfinished(parked):
            trajectory = groups[ordinal].trajectories[one.index]
            assert_kept(one, trajectory)
            answer = trajectory.rows[0].token_ids[trajectory.rows[0].num_prompt_tokens :].tolist()
            assert answer == run.uncut(ordinal, one.index, trajectory)


def test_after_kill_9_the_sweep_gives_the_prompt_to_the_next_worker_with_what_was_parked_last(
    redis: RedisServer, server: InferenceServer, model_dir: Path, tmp_path: Path
) -> None:
    with running("killed", redis, server, model_dir, tmp_path, interval_s=0.1, chunk_tokens=8) as run:
        with run.worker("first") as first:
            first.until("an unfinished group is parked", run.is_parked)
            run.pause_amid_answers(first)
            first.until("what is under way is parked", lambda: run.is_parked() or run.missed_it(first))
            assert first.stop(signal.SIGKILL) == -signal.SIGKILL

        def swept() -> bool:
            run.buffer.sweep()
            return run.buffer.counts()["in_flight"] == 0

        wait_for("the dead worker's claims are swept", swept)
        parked = run.parked()
        server.resume()
        groups = run.finished(parked)
        for ordinal, one in unfinished(parked):
            assert_kept(one, groups[ordinal].trajectories[one.index])
        assert run.buffer.audit().by_reason["worker_lost"] >= 1
