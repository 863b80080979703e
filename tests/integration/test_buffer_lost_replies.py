"""A lost reply, of any request of any call: the answer and the books are those of a run without the fault."""

import itertools
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from buffer import Claim, Draw, Fenced, ReplayBuffer, RunRecord
from buffer.answers import SweepReport
from buffer.keys import payload_key
from tests.support.buffer_run import CONFIG, BufferRun
from tests.support.groups import group_for, partials
from tests.support.redis_relay import RedisRelay
from tests.support.redis_server import RedisServer, running_redis

RECORD = RunRecord(schema=1, dataset="d41d8", seed=7, group_size=8, order="oldest", tokenizer="t0")
MOST_REQUESTS = 12
COUNT_CALLS = re.compile(r"fenced|denied_\w+")
"""Reasons that count calls, not groups: a repeat of a call that was refused is one more."""
IDS_OF_HINTS = re.compile(r"\d{13}-\d+")


@dataclass(frozen=True)
class Case:
    """`given` brings the run to where `call` is made. `repeated`: what a caller may hear instead whose first reply was
    lost. `leaves`: a payload may be left, which the slow sweep of old ones finds."""

    given: Callable[[BufferRun], Any]
    call: Callable[[BufferRun, Any], Any]
    repeated: str = ""
    leaves: bool = False


def nothing(run: BufferRun) -> None:
    pass


def parked(run: BufferRun) -> Claim:
    claim = run.claim()
    run.buffer.park(claim, partials(run.version()))
    return claim


def parked_for_the_next(run: BufferRun) -> Claim:
    run.buffer.abandon(parked(run))
    return run.claim()


def stale(run: BufferRun) -> None:
    """Two groups that are past the limit, two that are not."""
    run.make(2, run.version())
    run.number += 3
    run.advance()
    run.make(2)


def two_dead(run: BufferRun) -> None:
    run.set(max_attempts=1)
    for claim in (run.claim(), run.claim()):
        run.buffer.fail(claim, "reward_failed", "boom")
    large = run.claim()
    run.set(max_group_bytes=10)
    run.buffer.put(large, group_for(large, run.version()))


def one_that_killed(run: BufferRun) -> None:
    """A dead letter with its payload."""
    run.set(max_attempts=1)
    run.make(2)
    run.buffer.give_back(run.branch, [run.lease(1)[0].ordinal], "corrupt_payload")


def lost_worker(run: BufferRun) -> None:
    run.buffer.sweep()
    parked(run)
    run.claim()
    run.passes(61)


def left_payload(run: BufferRun) -> None:
    """Written, and its writer died before the put; beside one in the trash."""
    server = RedisServer.client(run._server.server)  # type: ignore[union-attr]
    key = payload_key(run.name, "7.1", "0" * 32, spilled=False)
    server.set("donor", b"x")
    server.restore(key, 0, server.dump("donor"), idletime=1000)
    server.sadd(f"{{{run.name}}}:trash", payload_key(run.name, "8.1", "1" * 32, spilled=False))


def evaluation(run: BufferRun) -> ReplayBuffer:
    held_out = run.buffer.open_evaluation(run.version(), num_prompts=2, group_size=1)
    claim = held_out.reserve("w")
    assert isinstance(claim, Claim)
    held_out.put(claim, group_for(claim, run.version()))
    return held_out


def held_out(run: BufferRun, _: Any) -> Any:
    found = run.attach().evaluation()
    assert found is not None
    return found.run, found.counts()


def drawn(run: BufferRun) -> Claim:
    claim = run.buffer.reserve("w", OFFERED)
    assert isinstance(claim, Claim)
    return claim


def played_drawn(run: BufferRun) -> None:
    claim = drawn(run)
    run.buffer.put(claim, group_for(claim, run.version()), pass_reward=0.5)


OFFERED = (Draw(0, 7, "no result yet"), Draw(2, 8, "no result yet"))

CASES: dict[str, Case] = {
    "connect": Case(nothing, lambda run, _: ReplayBuffer.connect(run._server.url, run.name, CONFIG).close()),
    "register": Case(nothing, lambda run, _: run.buffer.register(RECORD)),
    "record": Case(lambda run: run.buffer.register(RECORD), lambda run, _: run.buffer.record()),
    "reserve": Case(nothing, lambda run, _: run.buffer.reserve("w")),
    "reserve of a parked one": Case(
        lambda run: run.buffer.abandon(parked(run)), lambda run, _: run.buffer.reserve("w")
    ),
    "reserve, refused": Case(lambda run: run.claims(), lambda run, _: run.buffer.reserve("w")),
    "reserve with draws": Case(nothing, lambda run, _: run.buffer.reserve("w", OFFERED)),
    "reserve, draws passed": Case(drawn, lambda run, _: run.buffer.reserve("w", OFFERED[:1])),
    "put of a drawn one": Case(
        drawn, lambda run, claim: run.buffer.put(claim, group_for(claim, run.version()), pass_reward=0.5)
    ),
    "put of a drawn one, filtered": Case(
        drawn,
        lambda run, claim: run.buffer.put(claim, group_for(claim, run.version()), filtered="none", pass_reward=0.5),
        repeated="Fenced",
    ),
    "pass_rates": Case(played_drawn, lambda run, _: run.buffer.pass_rates([7, 8])),
    "draws": Case(played_drawn, lambda run, _: run.buffer.draws()),
    "renew": Case(lambda run: run.claim(), lambda run, claim: run.buffer.renew(claim, run.version(), 5)),
    "put": Case(lambda run: run.claim(), lambda run, claim: run.buffer.put(claim, group_for(claim, run.version()))),
    "put over what was parked": Case(parked, lambda run, claim: run.buffer.put(claim, group_for(claim, run.version()))),
    "put, filtered": Case(
        lambda run: run.claim(),
        lambda run, claim: run.buffer.put(claim, group_for(claim, run.version()), filtered="zero_variance"),
        repeated="Fenced",
    ),
    "put, stale": Case(
        lambda run: (run.claim(), setattr(run, "number", 5), run.advance())[0],
        lambda run, claim: run.buffer.put(claim, group_for(claim, run.version(0))),
        repeated="Fenced",
    ),
    "put, too large": Case(
        lambda run: (run.claim(), run.set(max_group_bytes=10))[0],
        lambda run, claim: run.buffer.put(claim, group_for(claim, run.version())),
    ),
    "park": Case(
        lambda run: run.claim(), lambda run, claim: run.buffer.park(claim, partials(run.version(), run.version()))
    ),
    "park again": Case(parked, lambda run, claim: run.buffer.park(claim, partials(run.version(), run.version()))),
    "fetch_partials": Case(parked_for_the_next, lambda run, claim: run.buffer.fetch_partials(claim)),
    "fail": Case(parked, lambda run, claim: run.buffer.fail(claim, "reward_failed", "boom", sampled=[3, 4])),
    "fail for the last time": Case(
        lambda run: (run.set(max_attempts=1), parked(run))[1], lambda run, claim: run.buffer.fail(claim, "boom")
    ),
    "abandon": Case(parked, lambda run, claim: run.buffer.abandon(claim, sampled=[3])),
    "lease": Case(lambda run: run.make(3), lambda run, _: run.try_lease()),
    "lease, not ready": Case(lambda run: run.make(1), lambda run, _: run.try_lease()),
    "fetch": Case(lambda run: (run.make(2), run.lease())[1], lambda run, batch: run.buffer.fetch(batch[0])),
    "fetch_each": Case(
        lambda run: (run.make(2), run.lease())[1], lambda run, batch: list(run.buffer.fetch_each(batch))
    ),
    **{
        f"give_back, {reason}": Case(
            lambda run: (run.make(2), run.lease())[1],
            lambda run, batch, reason=reason: run.buffer.give_back(run.branch, [batch[0].ordinal], reason),
        )
        for reason in (None, "corrupt_payload", "zero_variance")
    },
    "advance": Case(lambda run: setattr(run, "number", 1), lambda run, _: run.advance()),
    "ledger": Case(
        lambda run: (run.make(4), run.train())[1], lambda run, trained: run.checkpoint(trained, commit=False)
    ),
    "commit": Case(
        lambda run: (run.make(4), run.checkpoint(run.train(), commit=False))[1],
        lambda run, ledger: run.buffer.commit(run.branch, ledger),
    ),
    "recover": Case(
        lambda run: (run.make(4), run.checkpoint(run.train()), run.train())[1],
        lambda run, ledger: run.buffer.recover("nonce", ledger, number=1, limit=1, groups_per_version=2),
    ),
    "sweep of lost workers": Case(
        lost_worker, lambda run, _: run.buffer.sweep(), repeated=repr(SweepReport((), (), False, False, 0))
    ),
    "sweep of trash and strays": Case(left_payload, lambda run, _: bool(run.buffer.sweep()), leaves=True),
    "resubmit": Case(one_that_killed, lambda run, _: run.buffer.resubmit([0, 7]), repeated="()"),
    "purge": Case(one_that_killed, lambda run, _: run.buffer.purge([0, 7]), repeated="()"),
    "dead_letters": Case(two_dead, lambda run, _: run.buffer.dead_letters()),
    "stop": Case(nothing, lambda run, _: run.buffer.stop()),
    "pause": Case(nothing, lambda run, _: run.buffer.pause()),
    "resume": Case(lambda run: (run.buffer.pause(), run.buffer.stop()), lambda run, _: run.buffer.resume()),
    "stopped": Case(lambda run: run.buffer.stop(), lambda run, _: run.buffer.stopped()),
    "stop_mark": Case(lambda run: run.buffer.stop(), lambda run, _: run.buffer.stop_mark()),
    "open_evaluation": Case(
        nothing, lambda run, _: run.buffer.open_evaluation(run.version(), num_prompts=2, group_size=1).counts()
    ),
    "evaluation": Case(evaluation, held_out),
    "close_evaluation": Case(evaluation, lambda run, _: run.buffer.close_evaluation(), leaves=True),
    "report": Case(nothing, lambda run, _: run.buffer.report("w", {"a": 1.0})),
    "reports": Case(lambda run: run.buffer.report("w", {"a": 1.0}), lambda run, _: run.buffer.reports()),
    "hints": Case(
        lambda run: run.make(1), lambda run, _: (hints := run.buffer.hints("ready"), run.make(1), hints.wait(5))[2]
    ),
    "counts": Case(stale, lambda run, _: run.buffer.counts()),
    "usage": Case(stale, lambda run, _: run.buffer.usage()),
    "status": Case(stale, lambda run, _: run.buffer.status(now_ms=run.now_ms)),
    "groups": Case(stale, lambda run, _: run.buffer.groups(now_ms=run.now_ms)),
    "audit": Case(stale, lambda run, _: run.buffer.audit(payloads=True)),
}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


class Relayed(RedisRelay):
    """A relay that remembers its server."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.socket)
        self.server = server


@pytest.fixture(scope="module")
def relay(server: RedisServer) -> Iterator[Relayed]:
    with Relayed(server) as relay:
        yield relay


def played(case: Case, relay: Relayed, num_passing: int | None) -> tuple[str, str, str]:
    """The answer or the error of a call, the books after it, and the payloads; the names of runs left out."""
    run = BufferRun(relay)  # type: ignore[arg-type]
    numbers = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_hex", lambda num_bytes=16: f"{next(numbers):0{2 * num_bytes}x}")
        run.recover(limit=1, per_version=2)
        given = case.given(run)
        with relay.losing_reply_after(num_passing) if num_passing is not None else nullcontext():
            try:
                answer = repr(case.call(run, given))
            except Fenced as error:
                answer = type(error).__name__
    run.buffer.sweep()  # finishes what a caller would have deleted who heard of it
    books = run.attach()._store.books()
    books.num_stops = min(1, books.num_stops)  # it counts requests too
    books.reasons = {reason: n for reason, n in sorted(books.reasons.items()) if not COUNT_CALLS.fullmatch(reason)}
    keys = sorted(relay.server.client().scan_iter(f"payload:{run.name}*"))
    run.close()
    return tuple(IDS_OF_HINTS.sub("ID", text.replace(run.name, "RUN")) for text in (answer, repr(books), repr(keys)))


def test_every_public_call_has_a_case() -> None:
    calls = {name for name in dir(ReplayBuffer) if not name.startswith("_")}
    assert calls - {re.split(r"\W", name)[0] for name in CASES} == {"close", "in_memory"}


@pytest.mark.parametrize("name", CASES)
def test_a_lost_reply_changes_nothing(name: str, relay: Relayed) -> None:
    """B001, B002, B194, by every request of the call."""
    case = CASES[name]
    expected = played(case, relay, None)
    for num_passing in range(MOST_REQUESTS):
        before = relay.num_lost
        found = played(case, relay, num_passing)
        if found[0] == case.repeated:
            found = (expected[0], *found[1:])
        if case.leaves:
            found = (*found[:2], expected[2])
        assert found == expected, f"request {num_passing} of {name}"
        if relay.num_lost == before:  # the call had no such request
            assert num_passing > 0
            return
    raise AssertionError(f"{name} makes more than {MOST_REQUESTS} requests")
