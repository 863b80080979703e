"""One life of a server: what its engine holds, bringing it to head, and letting it sleep while its device is lent.

consumes  versions, through weightsync's receiver   waits for     head, an anchor or the wish to change
                                                    unblocked by  weightsync.publisher, flip; inference.sharing
produces  acknowledgements, for fleets and pruning

Staging goes on while the server samples. An activation that fails takes the server out of rotation until it has loaded
a whole version again; several in a row end this life, and the host starts the next one.
"""

import json
import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from asyncrl import waits
from asyncrl.inference.activation import ActivationFailed, Held, NotMeasured, Pausing, activate, inspect, prepare
from asyncrl.inference.adoption import unseen
from asyncrl.inference.client import ServerClient
from asyncrl.inference.draining import Ordered, run_empty
from asyncrl.inference.errors import ServerUnavailable
from buffer.versions import label
from weightsync.acks import State
from weightsync.errors import ChainBroken, DigestMismatch, TransportError
from weightsync.orders import Order
from weightsync.receiver import Receiver
from weightsync.ticket import Ticket

MAX_FAILURES = 3  # failed activations in a row before the server is started again
IDLE_POLL_S = 0.02
NOTES = "status-*.json"  # what the loader leaves in the stage directory, one of each rank

log = logging.getLogger(__name__)


@dataclass
class HostFacts:
    """What a host did, over all lives of its server, for people."""

    counts: dict[str, float] = field(default_factory=dict)
    version: str = ""
    state: str = ""
    trouble: str = ""
    _began_s: float = field(default_factory=time.monotonic)
    _served_at_s: float | None = None

    def add(self, name: str, amount: float = 1.0) -> None:
        """Count."""
        self.counts[name] = self.counts.get(name, 0.0) + amount

    def begin_life(self) -> None:
        """A server is about to be started, or looked for."""
        self.state, self._began_s, self._served_at_s = "starting", time.monotonic(), None

    def enter(self, state: State, name: str) -> None:
        """The server, `name`, is in this state from now on. The first time that a life serves is measured."""
        self.state = state
        if state == "serving" and self._served_at_s is None:
            self._served_at_s = time.monotonic()
            self.counts["last_to_head_s"] = self._served_at_s - self._began_s
            self.add("served_lives")
            log.info("%s serves %s, %.1f s after its life began", name, self.version, self._served_at_s - self._began_s)

    def served_s(self, now_s: float) -> float:
        """Seconds since this life served for the first time; below 0: it has not."""
        return float("-inf") if self._served_at_s is None else now_s - self._served_at_s

    @property
    def stamped(self) -> str:
        """Label of the version that the server has to show; empty while that changes."""
        return self.version if self.state == "serving" else ""

    def to_report(self) -> dict[str, float | str]:
        """As reported."""
        return {**self.counts, "version": self.version, "state": self.state, "trouble": self.trouble}


class ServerLife:
    """Brings one life of a server from its first answer to head and keeps it there, a `round` at a time."""

    def __init__(
        self,
        name: str,
        client: ServerClient,
        receiver: Receiver,
        *,
        stage_dir: Path,
        pausing: Pausing,
        facts: HostFacts,
    ) -> None:
        self._name, self._client, self._receiver, self._stage_dir = name, client, receiver, stage_dir
        self._pausing, self._facts = pausing, facts
        self._held: Held | None = None
        self._inspected = False
        self._num_failures = 0
        self._state: State = "starting"
        self._woken_s: float | None = None
        """When it was told to wake; None: it sleeps, or serves since."""

    async def round(self) -> None:
        """Obey operator and wish, find out what the engine holds, bring it to head, and say so.

        Raises:
            Ordered: an operator wants this life to end; what was in flight is answered, or had its time.
            ServerUnavailable: the server died, hangs, or does not take weights: it needs another life.
            StaleIncarnation: another host speaks for this server.
            LogLost: the version log does not answer.
        """
        # One thread for both: each hop costs as much as the question.
        order, wish = await waits.in_thread(lambda: (self._receiver.order(), self._receiver.wish()))
        if order is not None:
            await self._obey(order)
        if wish == "sleep":
            if self._state != "asleep":
                await self._sleep()
            return
        if self._state == "asleep":
            await self._wake()
        # One that serves found a head when it was inspected, and has nothing to do without one.
        if self._state != "serving" and await waits.in_thread(self._receiver.head) is None:
            return  # nothing to compare the weights with: the trainer writes version 0.0 when it starts
        try:
            if not self._inspected:
                await self._inspect()
            await self._catch_up()
            if self._held is not None and self._state != "serving":
                await waits.in_thread(self._receiver.acknowledge, self._held.version, self._held.digest)
                self._enter("serving")
        except (ChainBroken, TransportError) as error:
            # What it holds is still right, or it is out of rotation already. The next round tries again.
            self._trouble("stage_failures", str(error))
        except DigestMismatch as error:
            self._held = None
            self._enter("failed")
            self._trouble("digest_mismatches", str(error))

    async def _obey(self, order: Order) -> NoReturn:
        start_s, is_asleep = time.monotonic(), self._state == "asleep"
        await self._withdraw("draining", f"an operator asked it to {order.kind}, within {order.within_s:g} s")
        if not is_asleep:
            await run_empty(self._client, self._name, order.within_s)
        self._facts.counts["last_drain_s"] = time.monotonic() - start_s
        if order.kind == "replace":
            await waits.in_thread(self._receiver.obeyed, order)
        raise Ordered(order)

    async def _inspect(self) -> None:
        """Ask the engine what it holds: a host may be new beside an old server, and memory may come back changed."""
        await waits.in_thread(self._receiver.stage_inspect)
        for note in self._stage_dir.glob(NOTES):
            note.unlink(missing_ok=True)
        try:
            status = await inspect(self._client, pausing=self._pausing)
        except ActivationFailed as error:
            if isinstance(error, NotMeasured) and not any(self._stage_dir.glob(NOTES)):
                raise unseen(self._client.url, self._stage_dir) from error
            await self._failed(error)
            return
        self._held, self._inspected = None, True
        try:
            await waits.in_thread(self._receiver.acknowledge, status.version, status.digest, "updating")
        except DigestMismatch as error:
            # Paused until it has a whole version: what is in flight must not go on with these weights.
            self._enter("failed")
            self._trouble("digest_mismatches", str(error))
            return
        self._held, self._facts.version = Held(status.version, status.digest), label(status.version)
        await self._client.set_version(label(status.version))
        await self._client.resume()

    async def _catch_up(self) -> None:
        while True:
            have = None if self._held is None else self._held.version
            start_s = time.monotonic()
            ticket = await waits.blocking("host stages a version", self._receiver.stage, have)
            if ticket is None:
                return
            self._facts.add("stage_s", time.monotonic() - start_s)
            self._facts.add("staged_bytes", ticket.num_bytes)
            if self._held is not None:
                await prepare(self._client, ticket, deadline_s=self._pausing.deadline_s)
            await self._withdraw("updating")
            try:
                await self._activate(ticket)
            except ActivationFailed as error:
                await self._failed(error)

    async def _activate(self, ticket: Ticket) -> None:
        with waits.timed("host activates a version", lambda: f"{self._name}: {label(ticket.target)}"):
            activated = await activate(self._client, ticket, held=self._held, pausing=self._pausing)
        self._held, self._inspected, self._num_failures = Held(ticket.target, ticket.digest), True, 0
        self._facts.trouble = ""
        self._facts.add("activations")
        self._facts.add("pause_s", activated.pause_s)
        self._facts.add("changed_words", activated.num_changed)
        self._facts.counts["last_pause_s"] = activated.pause_s
        longest_s = self._facts.counts.get("longest_pause_s", 0.0)
        self._facts.counts["longest_pause_s"] = max(longest_s, activated.pause_s)
        self._facts.version = label(ticket.target)
        await waits.in_thread(self._receiver.acknowledge, ticket.target, ticket.digest)
        self._enter("serving")

    async def _failed(self, error: ActivationFailed) -> None:
        self._held = None
        self._num_failures += 1
        reason = f"{error} {await waits.in_thread(_loaders_words, self._stage_dir)}".strip()
        self._trouble("activation_failures", reason)
        await self._withdraw("failed", reason)
        await waits.in_thread(self._receiver.need, reason)
        if self._num_failures >= MAX_FAILURES:
            raise ServerUnavailable(
                f"{self._name} failed to take weights {self._num_failures} times in a row, so it is restarted: {reason}"
            ) from error

    async def _sleep(self) -> None:
        """Answer what is in flight with what it has, then give the memory back; only an idle server survives that."""
        start_s = time.monotonic()
        await self._withdraw("updating")
        await self._client.pause("abort")
        deadline = time.monotonic() + self._pausing.deadline_s
        while (loads := await self._client.loads()).num_running + loads.num_waiting:
            if time.monotonic() > deadline:
                raise ServerUnavailable(
                    f"{self._name} still runs {loads.num_running} requests {self._pausing.deadline_s:g} s after they "
                    "were aborted; its memory cannot be given back."
                )
            await waits.pause("host waits for its server to be idle", IDLE_POLL_S)
        await self._client.release_memory()
        await self._withdraw("asleep")
        self._woken_s = None
        self._facts.add("sleeps")
        self._facts.add("sleep_s", time.monotonic() - start_s)

    async def _wake(self) -> None:
        self._woken_s = time.monotonic()
        await self._withdraw("updating")
        await self._client.resume_memory()
        self._inspected = False  # some servers come back with other weights than they fell asleep with

    async def _withdraw(self, state: State, reason: str = "") -> None:
        if self._state != state:
            await waits.in_thread(self._receiver.withdraw, state, reason)
            self._enter(state)

    def _enter(self, state: State) -> None:
        self._state = state
        self._facts.enter(state, self._name)
        if state == "serving" and self._woken_s is not None:
            self._facts.add("wake_s", time.monotonic() - self._woken_s)
            self._woken_s = None

    def _trouble(self, name: str, text: str) -> None:
        log.warning("%s: %s", self._name, text)
        self._facts.add(name)
        self._facts.trouble = text


def _loaders_words(stage_dir: Path) -> str:
    """Why the loader refused, in its own words, from each rank that left some."""
    words = []
    for note in sorted(stage_dir.glob(NOTES)):
        try:
            left = json.loads(note.read_text())
        except (OSError, ValueError) as error:
            words.append(f"{note.name}: {error}")
        else:
            words.append(f"{note.stem}: {left.get('meaning')}; {left.get('reason')}.")
    return " ".join(words)
