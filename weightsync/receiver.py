"""Beside one server: find head, bring it near, leave a ticket for the engine's loader, speak for the server.

consumes  versions from log and transport    waits for     head to move, by a hint
produces  staged files and acknowledgements  unblocks      the host, which activates; the fleet, which routes

numpy only. The engine is never touched here: staging goes on while it samples.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from weightsync import chain
from weightsync.acks import State, Vitals
from weightsync.adapter_layout import BASE
from weightsync.bringer import Bringer
from weightsync.buckets import BucketPlan
from weightsync.config import WeightsyncConfig
from weightsync.digest import digest_of_model_dir
from weightsync.errors import ChainBroken, DigestMismatch, LayoutMismatch, ModelDirError, OriginMismatch
from weightsync.log.base import VersionLog, Wish
from weightsync.log.records import VersionRecord, describe
from weightsync.manifest import Manifest
from weightsync.model_dir import ModelDir
from weightsync.orders import Order
from weightsync.path_writer import PathWriter, Step
from weightsync.reader import Reader, UnreadableUpload
from weightsync.ticket import Ticket, put_layout, put_plan, put_ticket
from weightsync.transport.base import Deadline, Transport
from weightsync.versions import ORIGIN, label

logger = logging.getLogger(__name__)

UPDATE_BODY = (
    "gASVkQEAAAAAAABdlIwLQHdlaWdodHN5bmOUjAx0b3JjaC5fdXRpbHOUjBJfcmVidWlsZF90ZW5zb3JfdjKUk5QojA10b3JjaC5zdG9yYWdllI"
    "wQX2xvYWRfZnJvbV9ieXRlc5STlEP6gAKKCmz8nEb5IGqoUBkugAJN6QMugAJ9cQAoWBAAAABwcm90b2NvbF92ZXJzaW9ucQFN6QNYDQAAAGxp"
    "dHRsZV9lbmRpYW5xAohYCgAAAHR5cGVfc2l6ZXNxA31xBChYBQAAAHNob3J0cQVLAlgDAAAAaW50cQZLBFgEAAAAbG9uZ3EHSwR1dS6AAihYBw"
    "AAAHN0b3JhZ2VxAGN0b3JjaApCeXRlU3RvcmFnZQpxAVgOAAAAOTQ1MjM1MDMxMDc1MzZxAlgDAAAAY3B1cQNLAE50cQRRLoACXXEAWA4AAAA5"
    "NDUyMzUwMzEwNzUzNnEBYS4AAAAAAAAAAJSFlFKUSwBLAIWUSwGFlImMC2NvbGxlY3Rpb25zlIwLT3JkZXJlZERpY3SUk5QpUpR0lFKUhpRhLg"
    "=="
)
"""The constant body of an update request, one per engine rank: base64 of the pickle of [("@weightsync", empty uint8
tensor)]. A host has no torch and SGLang's unpickler takes nothing of ours, so what to apply stands in the ticket."""


class Receiver:
    """One per server and start of it. Thread-safe: stagings run one after the other."""

    _adds_adapters = False

    def __init__(
        self,
        log: VersionLog,
        transport: Transport,
        config: WeightsyncConfig,
        *,
        server: str,
        incarnation: str,
        url: str,
        stage_dir: Path,
        model_dir: Path,
        shared_dir: Path | None = None,
        lent: bool = False,
    ) -> None:
        """Registers the server, which voids what an earlier start of it said.

        Args:
            server: name of the server, the same over its restarts.
            incarnation: of this start.
            url: where requests go.
            stage_dir: of this server alone, best in memory; the engine reads it.
            model_dir: what the engine loads when it starts.
            shared_dir: of the run's servers on this machine, beside `stage_dir`; what one of them brings the others
                link. None: this one brings everything itself.
            lent: the server's devices are the trainer's, so that it sleeps when the wish says so.
        """
        self._log, self._config = log, config
        self._server, self._incarnation, self._lent = server, incarnation, lent
        self._stage_dir, self._model_dir = stage_dir, model_dir
        self._reader = Reader(log, transport, config.seal_key())
        self._watch = log.watch(("head", "anchor", "wish", "pin", "order"))
        self._lock = threading.Lock()
        self._origin: int | None = None
        self._checked_layout = ""
        stage_dir.mkdir(parents=True, exist_ok=True)
        self._bringer = Bringer(PathWriter(self._reader), config.seal_key(), stage_dir, shared_dir, server)
        log.register(server, incarnation, url, config.ack_lease_s, lent=lent)

    def head(self) -> int | None:
        """The newest published version."""
        record = self._log.head()
        return None if record is None else record.version

    def wait(self, deadline_s: float) -> bool:
        """Block until head, an anchor, the wish or an order changed since the last call; False at the deadline."""
        return self._watch.wait(deadline_s)

    def wish(self) -> Wish:
        """Whether the server shall serve, or sleep because the trainer needs its devices."""
        return self._log.wish() if self._lent else "serve"

    def order(self) -> Order | None:
        """What an operator asks of the server."""
        return self._log.orders().get(self._server)

    def obeyed(self, order: Order) -> None:
        """Take the order back, unless another one was given meanwhile."""
        self._log.put_order(self._server, None, obeyed=order)

    def origin_digest(self) -> int:
        """Digest of the model directory; reads it once.

        Raises:
            ModelDirError, LayoutMismatch: the directory is not the model of the log.
        """
        if self._origin is None:
            self._origin = digest_of_model_dir(self._model_dir, self._manifest(self._first_record()))
        return self._origin

    def stage(self, have: int | None) -> Ticket | None:
        """Bring head (or, after a trainer's change of ranks, a step towards it) into the stage directory.

        While the server is pinned (`VersionLog.put_pin`) it is brought to that version instead, and left there.

        Args:
            have: what the engine says that it holds; None if it cannot tell or its weights are damaged.
        Returns:
            None if there is nothing newer.
        Raises:
            ChainBroken: no path; the need is recorded, wait for an anchor.
            LayoutMismatch: trainer and server have different models.
            DeadlineExceeded, TransportError, LogLost: try again.
        """
        with self._lock:
            unreadable: set[str] = set()
            deadline = Deadline(self._config.stage_deadline_s, f"staging for {self._server}")
            while True:
                records = self._wanted(have, unreadable)
                if not records or records[-1].version == have:
                    return None
                way = chain.path(records, have, unreadable)
                if way is None:
                    raise self._no_path(records[-1], have, unreadable)
                try:
                    return self._stage(way.of_one_plan(), have, deadline)
                except UnreadableUpload as error:
                    # Pruned meanwhile, or damaged: plan anew, without it.
                    logger.warning("weightsync: %s", error)
                    unreadable.add(error.nonce)
                except (ModelDirError, OriginMismatch) as error:
                    logger.warning("weightsync: %s", error)
                    unreadable.add(chain.ORIGIN_NONCE)
                except DigestMismatch as error:
                    logger.warning("weightsync: %s", error)
                    unreadable |= {upload.nonce for upload in way.uploads} or {chain.ORIGIN_NONCE}

    def stage_inspect(self) -> Ticket:
        """A ticket that makes the loader measure what the engine holds and report it; it changes no weight.

        Raises:
            ChainBroken: the log is empty, so the layout is not known.
        """
        with self._lock:
            record = self._first_record()
            manifest = self._manifest(record)
            put_layout(self._stage_dir, manifest.layout_id, manifest.tensors)
            directory = str(self._model_dir)
            ticket = Ticket("inspect", None, None, ORIGIN, 0, manifest.layout_id, "", directory, "", 0)
            put_ticket(self._stage_dir, ticket)
            return ticket

    def acknowledge(self, version: int, digest: int, state: State = "serving") -> None:
        """Say that the engine holds `version`, after comparing its digest with the record's.

        Raises:
            DigestMismatch: they differ, or the log lost the version. The server is then `failed` in the log, and its
                need is recorded.
            StaleIncarnation: a newer start of the server is registered.
        """
        expected = self._log.digest_of(version)
        if expected != digest:
            reason = f"digest {digest:016x} at {label(version)}, published {expected or 0:016x}"
            if expected is None:
                # Also where the name was published since with other bits: then there is a digest, and it differs.
                reason = f"version {label(version)}, which the log does not have: it lost its tail"
            self._log.put_state(self._server, self._incarnation, "failed", reason)
            self._log.need(self._server, reason)
            raise DigestMismatch(
                f"server {self._server} has {reason}. It gets no requests until it has loaded an anchor."
            )
        self._log.put_ack(self._server, self._incarnation, version, digest, state)

    def withdraw(self, state: State = "updating", reason: str = "") -> None:
        """Take the server out of rotation: before an activation, when it sleeps, when it failed and why."""
        self._log.put_state(self._server, self._incarnation, state, reason)

    def renew(self, vitals: Vitals | None = None) -> None:
        """A sign of life, several times per `ack_lease_s`, with what was measured. Raises StaleIncarnation."""
        self._log.renew(self._server, self._incarnation, vitals)

    def need(self, reason: str) -> None:
        """Ask the trainer for an anchor of head; what was staged last may be the reason, so no other server gets it."""
        self._bringer.distrust()
        self._log.need(self._server, reason)

    def leave(self) -> None:
        """The server stops in order: it has no word any more."""
        self.close()
        self._log.leave(self._server, self._incarnation)

    def close(self) -> None:
        """Bring nothing more. Its word stays until the next start of the server voids it, or its lease ends."""
        self._bringer.close()

    def _stage(self, way: chain.Path, have: int | None, deadline: Deadline) -> Ticket:
        step = self._step(way, have)
        parts = self._bringer.bring(step, deadline)
        put_layout(self._stage_dir, step.manifest.layout_id, step.manifest.tensors)
        put_plan(self._stage_dir, step.plan.plan_id, step.plan.buckets, step.manifest.tensors)
        ticket = Ticket(
            kind="delta" if way.start is None else "anchor",
            base=have if way.start is None else None,
            base_digest=step.base_digest,
            target=way.target.version,
            digest=way.target.digest,
            layout=step.manifest.layout_id,
            plan=step.plan.plan_id,
            model_dir=str(self._model_dir),
            parts=parts.name,
            num_bytes=parts.num_bytes,
            entries=parts.entries,
        )
        put_ticket(self._stage_dir, ticket)
        self._bringer.tidy(parts)
        return ticket

    def _step(self, way: chain.Path, have: int | None) -> Step:
        manifest = self._manifest(way.target)
        directory = self._opened_origin(way.start, manifest)
        base_digest = None
        if way.start is None:
            assert have is not None, "a path without a start begins at what the engine holds"
            base_digest = self._log.digest_of(have)
        return Step(way, base_digest, manifest, self._plan_of(way, manifest), directory)

    def _plan_of(self, way: chain.Path, manifest: Manifest) -> BucketPlan:
        uploads = way.uploads
        if uploads:
            return self._reader.plan(uploads[0].plan, manifest)
        return BucketPlan.whole(manifest, self._config.bucket_words)

    def _opened_origin(self, start: VersionRecord | None, manifest: Manifest) -> ModelDir | None:
        """The model directory, if the path starts there and it is what the trainer started from."""
        if start is None or start.anchor is not None:
            return None
        if (digest := self.origin_digest()) != start.digest:
            raise OriginMismatch(
                f"{self._model_dir} has digest {digest:016x}, the run began from {start.digest:016x} "
                f"({start.model_dir} on the trainer's machine): other weights. An anchor is needed instead."
            )
        return ModelDir(self._model_dir)

    def _manifest(self, record: VersionRecord) -> Manifest:
        manifest = self._reader.manifest(record.layout)
        if BASE in manifest.by_name and not self._adds_adapters:
            raise LayoutMismatch(
                f"the trainer sends an adapter alone, and server {self._server} expects the weights of "
                f"{self._model_dir}. Set lora.sync and lora.rank alike on both sides."
            )
        if self._checked_layout != manifest.layout_id:
            wire = next((spec.dtype for spec in manifest.tensors if "float" in spec.dtype), "")
            ours = Manifest.from_model_dir(self._model_dir, wire)
            ours.check(manifest, f"server {self._server} ({self._model_dir})", "the trainer")
            self._checked_layout = manifest.layout_id
        return manifest

    def _first_record(self) -> VersionRecord:
        record = self._log.head()
        if record is None:
            raise ChainBroken("the log has no version yet: the trainer writes version 0.0 when it starts.")
        return record

    def _wanted(self, have: int | None, unreadable: set[str]) -> Sequence[VersionRecord]:
        """The log's records up to the version that the server is to hold."""
        # The pin is read after the records: it is put before its version's, so whoever sees that sees the pin.
        records, pin = self._log.records(), self._log.pin()
        if pin is None or pin.server != self._server:
            return records
        return chain.up_to(pin.version, records, have, unreadable)

    def _no_path(self, head: VersionRecord, have: int | None, unreadable: set[str]) -> ChainBroken:
        failed = head.anchor.nonce if head.anchor is not None and head.anchor.nonce in unreadable else ""
        reason = f"holds {label(have)}, no readable path to {describe(head)}"
        self._log.need(self._server, reason, failed)
        return ChainBroken(
            f"server {self._server} {reason}; unreadable: {sorted(unreadable) or 'nothing, the parts were pruned'}. "
            "The trainer is asked for an anchor; if this repeats, raise weightsync.keep_deltas."
        )
