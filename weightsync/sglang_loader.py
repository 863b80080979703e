"""Runs inside the server, in every engine rank: apply the ticket in the stage directory, all of it or nothing.

Named to the server as `--custom-weight-loader weightsync.sglang_loader.load`, called between two steps of the engine
while it is paused. torch, numpy and this package only. It never raises: an exception here kills the server, and what it
returns is not seen. The answer is read through the model's own `get_weights_by_name("@weightsync")`:

  [code, branch, number, upper 32 bits of the digest, lower 32 bits, words changed]

branch and number are 2^32 - 1 each while the weights are of no known version. Reasons in words are in the stage
directory's status-<rank>.json. `get_weights_by_name("@weightsync/prepare")`, asked while the engine samples, has a
thread begin what needs no pause.
"""

import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weightsync.address_map import AddressMap, Loads, signature
from weightsync.digest import total
from weightsync.engine_weights import EngineWeights, Proposed
from weightsync.errors import CorruptDelta
from weightsync.layout import Bucket, TensorSpec
from weightsync.loader_status import (
    ALREADY,
    APPLIED,
    BAD_LAYOUT,
    BAD_PART,
    BAD_TICKET,
    BASE_DIGEST,
    CODES,
    DIRTY,
    FAILED,
    RESULT_DIGEST,
    WRONG_BASE,
    Refused,
    install,
    leave_note,
    status,
)
from weightsync.loader_status import STATUS as STATUS  # the name that a host asks for
from weightsync.low_rank import loads_of
from weightsync.ownership import settle
from weightsync.peers import Peers, find_peers
from weightsync.preparation import PREPARE, Preparation, Prepared
from weightsync.ticket import Ticket, read_layout, read_parts, read_plan, read_ticket
from weightsync.versions import ORIGIN, label, pack

STAGE_DIR = "ASYNCRL_STAGE_DIR"
"""Environment variable: the server's stage directory."""

MODEL_VERSION = "ASYNCRL_MODEL_VERSION"
"""Environment variable: label of the version that the server was started from; 0.0 if it is not set."""

_ATTRIBUTE = "_weightsync_engine"

logger = logging.getLogger(__name__)


# Any: SGLang passes the model of whatever class, and tensors that are not looked at.
def load(model: Any, named_tensors: Any) -> None:
    """Apply the ticket. The tensors of the request are a constant and carry nothing."""
    try:
        engine = getattr(model, _ATTRIBUTE, None)
        if engine is None:
            engine = Engine(model)
            setattr(model, _ATTRIBUTE, engine)
        engine.load()
    except Exception:  # it must not reach the server; the host sees a status that did not change
        logger.exception("weightsync: unexpected error in the loader")


class Engine:
    """What one rank knows of its model."""

    def __init__(self, model: Any) -> None:
        self._model: Loads = model
        self._weights: EngineWeights | None = None
        self._tensors: tuple[TensorSpec, ...] = ()
        self._layout = ""
        self._signature: object = None
        self._plan: tuple[tuple[str, str], tuple[Bucket, ...]] = ("", ""), ()
        self._peers: Peers = find_peers()
        self.version: int | None = _start_version()
        self.digest: int | None = None
        self._writing = False
        self.status = status(FAILED, None, None, 0)
        self._preparation = Preparation()
        install(model, {STATUS: lambda: self.status, PREPARE: self.prepare})

    def prepare(self) -> list[int]:
        """Have a thread make the staged delta ready, while the engine samples; [how far that is]. Never raises."""
        held, directory = (self._layout, self.version, self.digest), Path(os.environ.get(STAGE_DIR, ""))
        return [self._preparation.begin(directory, held, self._weights, self._buckets)]

    def load(self) -> None:
        """Apply the ticket and set the status; never raises."""
        changed, reason = 0, ""
        try:
            changed = self._load()
            code = APPLIED
        except Refused as refusal:
            code, reason = refusal.code, refusal.reason
        except Exception as error:  # raising here kills the server
            logger.exception("weightsync: unexpected error")
            code, reason = DIRTY if self._writing else FAILED, repr(error)
        self._writing = False
        self.status = status(code, self.version, self.digest, changed)
        if code not in (APPLIED, ALREADY):
            logger.error("weightsync: %s (%s)", reason, CODES[code])
        leave_note(Path(os.environ.get(STAGE_DIR, "/nonexistent")), self._peers.rank, code, reason, self.version)

    def _load(self) -> int:
        directory = Path(os.environ.get(STAGE_DIR, ""))
        ticket = self._read(directory)
        ready: Prepared | None = self._together(lambda: self._preparation.take(ticket), FAILED)
        measured = self._map(ticket)
        assert self._weights is not None
        weights, ready = self._weights, None if measured else ready  # else it was made ready for others
        if ticket.kind == "inspect":
            if not measured:
                self._measure(FAILED)
            return 0
        self._check_base(ticket)
        laps = [time.perf_counter()]
        if ticket.kind == "delta":
            self._spot_check(weights, ready)
        laps.append(time.perf_counter())
        # Words change from here on: until every rank has written or taken back, they are of no version.
        before, self.version, self._writing = self.version, None, True
        try:
            proposed, changed = self._propose(weights, directory, ticket, ready)
        except Refused:
            self._together(weights.take_back, DIRTY)
            self.version, self._writing = before, False
            raise
        laps.append(time.perf_counter())
        self._together(lambda: self._write(weights, proposed), DIRTY)
        if ticket.kind == "anchor":
            self._measure(DIRTY, ticket.digest)
        self.version, self.digest = ticket.target, ticket.digest
        laps.append(time.perf_counter())
        took_ms = [1e3 * (end - start) for start, end in itertools.pairwise(laps)]
        done = "weightsync: %s -> %s, %d words; %.1f ms of spot check, %.1f of adding and digests, %.1f of writing"
        logger.info(done, label(before), label(self.version), changed, *took_ms)
        return changed

    def _propose(
        self, weights: EngineWeights, directory: Path, ticket: Ticket, ready: Prepared | None
    ) -> tuple[Proposed, int]:
        """What the ticket does here, and the words that change on all ranks; refused unless the digest is its own."""
        anchor = ticket.kind == "anchor"

        def propose() -> Proposed:
            if ready is not None:
                return weights.propose(ready.staged, anchor=anchor, foreseen=ready.foreseen)
            return weights.propose(read_parts(directory, ticket, self._buckets(directory, ticket.plan)), anchor=anchor)

        proposed: Proposed = self._together(propose, BAD_PART)
        gain, replicas, changed = self._peers.sums([proposed.gain, proposed.replicas, proposed.num_changed])
        start = 0 if anchor else (self.digest or 0)
        if (after := total((start, gain))) != ticket.digest or replicas:
            reason = f"the ticket makes digest {after:016x} of {label(ticket.target)}, published {ticket.digest:016x}"
            raise Refused(RESULT_DIGEST, reason + ("; replicas of a tensor differ" if replicas else ""))
        return proposed, changed

    def _read(self, directory: Path) -> Ticket:
        def look() -> Ticket:
            if STAGE_DIR not in os.environ:
                raise Refused(BAD_TICKET, f"{STAGE_DIR} is not set in the server's environment")
            ticket = read_ticket(directory)
            if ticket.layout != self._layout:
                self._tensors, self._weights = read_layout(directory, ticket.layout), None
                self._layout = ""  # until a map of these tensors is made
            return ticket

        ticket: Ticket = self._together(look, BAD_TICKET)
        return ticket

    def _buckets(self, directory: Path, plan: str) -> tuple[Bucket, ...]:
        """The plan of the ticket; most versions have that of the one before."""
        if self._plan[0] != (self._layout, plan):
            self._plan = (self._layout, plan), read_plan(directory, plan, self._tensors)
        return self._plan[1]

    def _write(self, weights: EngineWeights, proposed: Proposed) -> None:
        weights.write(proposed)
        # SGLang runs this after its own loaders only.
        after: Callable[[], object] | None = getattr(self._model, "post_load_weights", None)
        if after is not None:
            after()

    def _check_base(self, ticket: Ticket) -> None:
        """All ranks hold the same version and digest, so all decide the same."""
        if ticket.kind == "anchor":
            return
        if self.version == ticket.target and self.digest == ticket.digest:
            raise Refused(ALREADY, f"{label(ticket.target)} is held already")
        if self.version is None or self.version != ticket.base:
            raise Refused(WRONG_BASE, f"base {label(ticket.base)}, this engine holds {label(self.version)}")
        if self.digest != ticket.base_digest:
            expected, found = ticket.base_digest or 0, self.digest or 0
            raise Refused(BASE_DIGEST, f"{label(ticket.base)} has digest {expected:016x}, these weights {found:016x}")

    def _spot_check(self, weights: EngineWeights, ready: Prepared | None) -> None:
        """A word that changed behind the loader's back, and that no delta touches, shows here sooner or later."""

        def look() -> None:
            if (tensor := weights.spot_check() if ready is None else ready.damaged) is not None:
                raise Refused(BASE_DIGEST, f"words of {tensor} changed since they were loaded")

        try:
            self._together(look, BASE_DIGEST)
        except Refused:
            self.version = None
            raise

    def _map(self, ticket: Ticket) -> bool:
        """Make the address map if there is none for this layout and these storages; then measure. Was it made?"""
        where = signature(self._model)
        stale = self._weights is None or where != self._signature
        if not self._peers.worst(int(stale)):
            return False
        self._weights = None
        named = [spec for spec in self._tensors if spec.num_words]
        model_dir, rank = Path(ticket.model_dir), self._peers.rank
        loads = self._together(lambda: loads_of(self._model, self._tensors, model_dir), BAD_LAYOUT)
        recorded = self._together(lambda: AddressMap.record(loads, self._tensors), BAD_LAYOUT)
        self._together(lambda: refuse_packed(self._model, recorded), BAD_LAYOUT)
        opaque = self._peers.sums([int(spec.name in recorded.opaque) for spec in named])
        boxes = recorded.without(spec.name for spec, count in zip(named, opaque, strict=True) if count)
        boxes, missing = settle(boxes, named, self._peers, loads)
        if missing:
            raise Refused(
                BAD_LAYOUT,
                f"the engine's load_weights takes only a part of {missing[0]} (and of {len(missing) - 1} more), or "
                "none: the server runs another model than the trainer, or only a stage of it",
            )
        self._weights = self._together(lambda: EngineWeights(loads, self._tensors, boxes, model_dir, rank), BAD_LAYOUT)
        self._layout, self._signature = ticket.layout, where
        if boxes.opaque and loads is self._model:
            logger.warning("weightsync: these tensors go through load_weights whole: %s", boxes.opaque)
        self._measure(BASE_DIGEST if self.digest is not None else FAILED, self.digest)
        return True

    def _measure(self, code: int, expected: int | None = None) -> None:
        """Take the digest from every word; with `expected`, refuse with `code` if it is another."""
        assert self._weights is not None
        found, replicas = self._peers.sums(self._together(self._weights.measure, FAILED))
        if replicas or (expected is not None and found != expected):
            self.version, self.digest = None, found
            raise Refused(code, f"the weights have digest {found:016x}, expected {expected or 0:016x}")
        self.digest = found

    def _together(self, step: Callable[[], Any], code: int) -> Any:
        """Run a step on every rank; if one fails, all are refused with the worst code."""
        answer, mine, reason = None, APPLIED, ""
        try:
            answer = step()
        except Refused as refusal:
            mine, reason = refusal.code, refusal.reason
        except CorruptDelta as error:
            mine, reason = code, str(error)
        except Exception as error:  # whatever it is: raising here kills the server
            logger.exception("weightsync: unexpected error")
            mine, reason = code if code == DIRTY else FAILED, repr(error)
        if worst := self._peers.worst(mine):
            raise Refused(worst, reason or "another rank refused")
        return answer


def refuse_packed(model: Any, recorded: AddressMap) -> None:
    """Refuse a model that computes with packed copies of weights it has dropped: nothing that is written reaches them.

    What such a parameter is loaded with fails at writing, when other weights are new already; and until then its words
    would be taken for those of the model directory, since there are none to be measured.
    """
    packed = [name for name, parameter in model.named_parameters() if not parameter.numel()]
    if packed and recorded.opaque:
        raise Refused(
            BAD_LAYOUT,
            f"the engine keeps packed copies of {packed[0]} and {len(packed) - 1} more, and has dropped the weights "
            "themselves: they cannot be updated in place. Start it without that kernel or quantisation",
        )


def _start_version() -> int | None:
    text = os.environ.get(MODEL_VERSION)
    if text is None:
        return ORIGIN
    branch, _, number = text.partition(".")
    try:
        return pack(int(branch), int(number))
    except ValueError:
        logger.error("weightsync: %s = %r is not a version like 1.42; an anchor is needed", MODEL_VERSION, text)
        return None
