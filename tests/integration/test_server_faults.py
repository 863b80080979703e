"""Whatever happens to a server's weights, it ends on the right ones by itself, and until then it is out of rotation.

Every fault runs through the real host, receiver, loader and HTTP. `EngineFleet` compares an engine bit for bit with the
trainer's weights each time that its host says it serves.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.engine_fleet import Engine, EngineFleet
from tests.support.event_loop import in_event_loop
from tests.support.fused_model import checkpoint, engine_of
from weightsync import sglang_loader
from weightsync.engine_weights import EngineWeights
from weightsync.ticket import TICKET, read_ticket
from weightsync.versions import pack


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineFleet]:
    with ExitStack() as stack:
        yield EngineFleet(tmp_path, stack)


def said_after(world: EngineFleet, name: str, mark: int) -> list[tuple[int | None, str]]:
    """What a server's host told the log since, without saying the same thing twice."""
    told = [(version, state) for found, version, state in world.said[mark:] if found == name]
    return [item for i, item in enumerate(told) if i == 0 or told[i - 1] != item]


def flip(words: Tensor, at: int) -> None:
    """One bit of one word."""
    words.data.view(torch.int16).view(-1)[at] ^= 1 << 5


def flip_a_changed_word(engine: Engine) -> None:
    before = engine.world.made[pack(1, 1)]["model.norm.weight"].view(torch.int16)
    after = engine.world.made[pack(1, 2)]["model.norm.weight"].view(torch.int16)
    flip(engine.model.norm, int((before != after).nonzero()[0]))


def flip_an_unchanged_word(engine: Engine) -> None:
    before = engine.world.made[pack(1, 1)]["model.norm.weight"].view(torch.int16)
    after = engine.world.made[pack(1, 2)]["model.norm.weight"].view(torch.int16)
    flip(engine.model.norm, int((before == after).nonzero()[0]))


def flip_a_staged_bit(engine: Engine) -> None:
    ticket = read_ticket(engine.stage_dir)
    path = engine.stage_dir / ticket.parts
    blob = bytearray(path.read_bytes())
    blob[ticket.entries[0].at + 1] ^= 1
    path.write_bytes(blob)  # the same file: every server that links it sees the damage


def cut_the_staged_file(engine: Engine) -> None:
    path = engine.stage_dir / read_ticket(engine.stage_dir).parts
    path.write_bytes(path.read_bytes()[:-9])


def lose_the_staged_file(engine: Engine) -> None:
    (engine.stage_dir / read_ticket(engine.stage_dir).parts).unlink()


def damage_the_ticket(engine: Engine) -> None:
    path = engine.stage_dir / TICKET
    path.write_text(path.read_text()[:-3])


def other_weights(engine: Engine) -> None:
    """Somebody loaded another checkpoint into the server."""
    engine.model.load_weights(checkpoint(seed=9).items())


def start_again_unnoticed(engine: Engine) -> None:
    """The engine is back at its directory, and its host believes that it holds 1.1."""
    engine.model = engine_of(engine.world.model_dir)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (flip_a_changed_word, sglang_loader.BASE_DIGEST),
        (flip_an_unchanged_word, sglang_loader.BASE_DIGEST),
        (other_weights, sglang_loader.BASE_DIGEST),
        (start_again_unnoticed, sglang_loader.WRONG_BASE),
        (flip_a_staged_bit, sglang_loader.RESULT_DIGEST),
        (cut_the_staged_file, sglang_loader.BAD_PART),
        (lose_the_staged_file, sglang_loader.BAD_PART),
        (damage_the_ticket, sglang_loader.BAD_TICKET),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@in_event_loop
async def test_a_fault_in_memory_or_on_the_way_is_refused_told_and_healed_by_a_whole_version(
    world: EngineFleet, fault: Callable[[Engine], None], code: int
) -> None:
    """B042, B043, B049, B068: the failed apply is told, the version stays, nothing is served before the digest is
    right."""
    lives = world.lives("s")
    (engine,) = lives.engines
    async with world.hosting(lives) as (host,):
        await world.serving(world.publish(1), "s")
        mark = len(world.said)
        engine.before = fault
        version = world.publish(2, fraction=0.2)
        await world.serving(version, "s")
        assert engine.codes[-2] == code
        assert engine.codes[-1] == sglang_loader.APPLIED
        # Out of rotation before the weights were touched, failed, and back only with the version that is head.
        told = said_after(world, "s", mark)
        assert told[0] == (None, "updating")
        assert (None, "failed") in told
        assert [item for item in told if item[1] == "serving"] == [(version, "serving")]
        reason = world.reasons[0]  # in the log, for the trainer and for people
        assert f"code {engine.codes[-2]}" in reason
        if fault is start_again_unnoticed:
            assert "base 1.1, this engine holds 0.0" in reason
        assert host.facts.counts["activation_failures"] == 1
        assert engine.holds(world.weights)
        await world.serving(world.publish(3), "s")
        assert host.facts.counts["activation_failures"] == 1


@in_event_loop
async def test_a_damaged_shared_file_hurts_no_second_server(world: EngineFleet) -> None:
    """Both servers of a machine link one file, and memory flips a bit of it before either applied it."""
    first, second = world.lives("s1"), world.lives("s2")
    async with world.hosting(first, second) as hosts:
        await world.serving(world.publish(1), "s1", "s2")
        first.engines[0].before = second.engines[0].before = flip_a_staged_bit
        version = world.publish(2)
        await world.serving(version, "s1", "s2")
        # Two flips of one bit undo each other, so one of them may have found nothing.
        assert 1 <= sum(host.facts.counts.get("activation_failures", 0) for host in hosts) <= 4
        assert all(lives.engines[0].holds(world.weights) for lives in (first, second))


@in_event_loop
async def test_a_server_that_refuses_over_http_is_out_of_rotation_while_the_other_serves(
    world: EngineFleet, caplog: pytest.LogCaptureFixture
) -> None:
    """B044, B045: of two servers one answers 500 to an update; nobody is sent to it before it holds head."""
    good, bad = world.lives("good"), world.lives("bad", num=2)
    async with world.hosting(good, bad) as (_, host):
        await world.serving(world.publish(1), "good", "bad")
        mark = len(world.said)
        fake = bad.engines[0].server
        usual, refusals = fake.do_update_weights_from_tensor, []

        def refuse_once(body: object) -> tuple[int, object]:
            if refusals:
                return usual(body)
            refusals.append(body)
            return 500, {"error": "chunk 2 of 3 failed"}

        fake.do_update_weights_from_tensor = refuse_once  # type: ignore[method-assign]  # the one misbehaviour
        version = world.publish(2)
        await world.serving(version, "good", "bad")
        told = said_after(world, "bad", mark)
        assert [item for item in told if item[1] == "serving"] == [(version, "serving")]
        assert (len(refusals), bad.life, host.facts.counts["restarts"]) == (1, 1, 1)
        assert "chunk 2 of 3 failed" in caplog.text, "why"


@in_event_loop
async def test_a_server_that_dies_while_it_writes_comes_back_from_its_directory_to_head(
    world: EngineFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B053: half of the words are written; the next life is asked for nothing until it holds the fleet's version."""
    lives = world.lives("s", num=2)
    first, second = lives.engines
    async with world.hosting(lives) as (host,):
        await world.serving(world.publish(1), "s")

        def dies_half_way(weights: EngineWeights, verified: object) -> None:
            flip(first.model.norm, 0)
            monkeypatch.undo()
            lives.die()
            raise RuntimeError("the process is gone")

        mark = len(world.said)
        monkeypatch.setattr(EngineWeights, "write", dies_half_way)
        version = world.publish(2)
        await world.serving(version, "s")
        assert lives.life == 1
        assert second.holds(world.weights)
        assert not first.holds(world.weights)
        assert host.facts.counts["restarts"] == 1
        told = said_after(world, "s", mark)
        assert [item for item in told if item[1] == "serving"] == [(version, "serving")]
        # Its first word, at version 0.0, was said out of rotation.
        assert (0, "updating") in told


@in_event_loop
async def test_late_joiners_and_servers_that_missed_versions_get_to_head_past_what_was_pruned(tmp_path: Path) -> None:
    """B050: the deltas between a server's version and head are gone; it starts whole instead of replaying a gap."""
    with ExitStack() as stack:
        world = EngineFleet(tmp_path, stack, anchor_interval=3, keep_deltas=1)
        absent, late = world.lives("absent", num=2), world.lives("late")
        async with world.hosting(absent):
            await world.serving(world.publish(1), "absent")
        for number in range(2, 9):
            version = world.publish(number)
        assert world.prune() > 0
        assert world.log.records()[0].version > pack(1, 1), "what led on from 1.1 is gone"
        async with world.hosting(absent, late):
            await world.serving(version, "absent", "late")
            assert late.engines[0].holds(world.weights)
            # One more, as a delta for both.
            await world.serving(world.publish(9), "absent", "late")
            assert [lives.engine.codes[-1] for lives in (absent, late)] == [sglang_loader.APPLIED] * 2


@in_event_loop
async def test_versions_that_are_published_and_pruned_while_a_server_loads_are_no_fault(tmp_path: Path) -> None:
    """B067: between the ticket and the load of 1.2 come 1.3 to 1.5, with anchors, and everything older is pruned."""
    with ExitStack() as stack:
        world = EngineFleet(tmp_path, stack, anchor_interval=2, keep_deltas=0)
        lives = world.lives("s")
        async with world.hosting(lives) as (host,):
            await world.serving(world.publish(1), "s")

            def meanwhile(engine: Engine) -> None:
                for number in range(3, 6):
                    world.publish(number)
                world.prune()

            lives.engines[0].before = meanwhile
            world.publish(2)
            await world.serving(pack(1, 5), "s")
            assert host.facts.counts.get("activation_failures", 0) == 0
            assert host.facts.counts.get("restarts", 0) == 0
            assert lives.engines[0].holds(world.weights)


@in_event_loop
async def test_a_delta_that_is_delivered_twice_is_applied_once(world: EngineFleet) -> None:
    """B051: the answer to an update is lost, and the same ticket is loaded again."""
    lives = world.lives("s")
    (engine,) = lives.engines
    async with world.hosting(lives):
        await world.serving(world.publish(1), "s")
        engine.before = lambda engine: engine.load()
        version = world.publish(2)
        await world.serving(version, "s")
        assert engine.codes[-2:] == [sglang_loader.APPLIED, sglang_loader.ALREADY]
        assert engine.holds(world.weights)
        await world.serving(world.publish(3), "s")
