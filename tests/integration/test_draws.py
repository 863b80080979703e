"""Draws by results in a real ledger: a worker that is killed keeps its draw, and a run's draws can be read."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.config.data import CurriculumConfig
from asyncrl.data.rows import PromptRow
from asyncrl.rollout.prompts import PromptOrder
from asyncrl.rollout.reservation import Prompts, Reservations
from asyncrl.rollout.work import Work
from buffer import BufferConfig, Claim, Draw, PassRate, ReplayBuffer
from tests.support.groups import group_for
from tests.support.inference_servers import ROOT, environment
from tests.support.redis_server import RedisServer, running_redis

CONFIG = BufferConfig(claim_s=60)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def opened(server: RedisServer, run: str, *, per_version: int = 8) -> ReplayBuffer:
    buffer = ReplayBuffer.connect(server.url, run, CONFIG)
    buffer.recover("nonce", None, number=0, limit=0, groups_per_version=per_version)
    return buffer


def test_a_worker_killed_between_draw_and_play_leaves_its_draw_to_the_next(server: RedisServer) -> None:
    buffer = opened(server, "killed")
    command = [sys.executable, "-m", "tests.support.drawing_worker", server.url, "killed"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        given = json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert given["ordinal"] == 0
    late = ReplayBuffer.connect(
        server.url, "killed", CONFIG, clock=lambda: time.time_ns() // 1_000_000 + 1000 * 2 * round(CONFIG.claim_s)
    )
    assert late.sweep().expired == (0,)
    again = late.reserve("next", (Draw(6, 99, "no result yet"),))
    assert isinstance(again, Claim)
    assert (again.ordinal, again.attempt) == (0, 2)
    assert again.draw == Draw(5, 42, "pass rate 0.5 (4 of 8, ordinal 1)")
    assert again.token != given["token"]
    assert late.audit().ok
    for one in (buffer, late):
        one.close()


def rows(count: int) -> list[PromptRow]:
    return [PromptRow(i, "s", ({"role": "user", "content": str(i)},), str(i), {}) for i in range(count)]


def reservations(buffer: ReplayBuffer, name: str, size: int) -> Reservations:
    curriculum = CurriculumConfig(policy="pass_rate", low=0.4, high=0.6, retry_share=0.0, pass_reward=1.0)
    prompts = Prompts(rows(size), PromptOrder(size, 0, shuffle=False), 2, curriculum=curriculum)
    return Reservations(buffer, name, train=prompts, held_out=None, stopping=lambda: False, sweep_every_s=60.0)


def take(one: Reservations) -> Work:
    work = one.attempt()
    assert isinstance(work, Work), one.why()
    return work


def test_workers_share_an_epoch_and_the_next_one_leaves_out_what_is_outside_the_band(server: RedisServer) -> None:
    size = 6
    buffer = opened(server, "workers", per_version=2 * size)
    workers = [reservations(buffer, f"w{i}", size) for i in range(3)]
    played = {}
    for i in range(size):
        work = take(workers[i % 3])
        played[work.row.index] = work.claim.ordinal
        # Even prompts are half right, odd ones never.
        rewards = (1.0, 0.0) if work.row.index % 2 == 0 else (0.0, 0.0)
        group = group_for(work.claim, 0, rewards=rewards)
        buffer.put(work.claim, group, pass_reward=1.0)
        workers[i % 3].done(work)
    assert sorted(played) == list(range(size)), "an epoch has each prompt once, whoever asks"
    second = [take(workers[i % 3]) for i in range(3)]
    assert [work.row.index for work in second] == [0, 2, 4]
    assert second[0].claim.draw is not None
    assert second[0].claim.draw.reason == f"pass rate 0.5 (1 of 2, ordinal {played[0]})"
    draws, rates = buffer.draws()
    assert [draw.position for draw in draws.values()] == [0, 1, 2, 3, 4, 5, 6, 8, 10]
    assert rates[1] == PassRate(0, 2, played[1])
    for one in workers:
        one.close()
    assert buffer.audit().ok
    buffer.close()


def test_a_run_without_a_curriculum_records_nothing(server: RedisServer) -> None:
    buffer = opened(server, "plain")
    plain = Prompts(rows(4), PromptOrder(4, 0, shuffle=False), 2)
    one = Reservations(buffer, "w", train=plain, held_out=None, stopping=lambda: False, sweep_every_s=60.0)
    assert [take(one).row.index for _ in range(3)] == [0, 1, 2]
    one.close()
    assert buffer.draws() == ({}, {})
    buffer.close()


def test_the_command_writes_the_draws_of_a_run(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = opened(server, "shown")
    claim = buffer.reserve("w", (Draw(3, 7, "no result yet"),))
    assert isinstance(claim, Claim)
    buffer.put(claim, group_for(claim, 0, rewards=(1.0, 0.0)), pass_reward=1.0)
    config = tmp_path / "run.yaml"
    config.write_text(f"run: {{name: shown, dir: {tmp_path / 'run'}}}\nbuffer: {{url: {json.dumps(server.url)}}}\n")
    assert main(["data", "draws", str(config)]) == 0
    line = {
        "ordinal": 0,
        "position": 3,
        "prompt": 7,
        "reason": "no result yet",
        "passed": 1,
        "scored": 2,
        "result_of": 0,
    }
    assert [json.loads(text) for text in capsys.readouterr().out.splitlines()] == [line]
    assert main(["data", "draws", str(config), "--out", str(tmp_path / "draws.jsonl")]) == 0
    assert json.loads((tmp_path / "draws.jsonl").read_text()) == line
    buffer.close()
