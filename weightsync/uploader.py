"""Encode a rank's buckets and put their parts, one part on its way while the next ones are encoded."""

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, NamedTuple

from weightsync.codec import Encoded, Encoder, FrameHeader
from weightsync.digest import total
from weightsync.encoders import Encoders
from weightsync.layout import Bucket, Words
from weightsync.link_rates import Form, LinkRates
from weightsync.snapshot import Snapshot
from weightsync.transport.base import Deadline, Transport, part_key

_IN_FLIGHT_BYTES = 64 << 20
_WORTH_BYTES = 16 << 20  # of a rank's words: less is put before a choice could matter


@dataclass
class Uploaded:
    """What one rank put for a version.

    Attributes:
        parts: (bucket, bytes) of every part.
        unchanged: buckets of which no word changed.
        frames: the parts themselves, with which the snapshot advances after the flip; empty for an anchor.
        num_changed: words.
        gain: of the digest over all buckets; for an anchor the sum of the buckets' digests.
        rates: are told how long applying the frames takes.
    """

    parts: list[tuple[int, int]] = field(default_factory=list)
    unchanged: list[int] = field(default_factory=list)
    frames: list[tuple[Bucket, bytes]] = field(default_factory=list)
    num_changed: int = 0
    gain: int = 0
    rates: LinkRates | None = None


class Uploader:
    """Puts versions of one rank. Not thread-safe: one publish at a time."""

    def __init__(
        self,
        transport: Transport,
        rank: int,
        key: bytes | None,
        mode: Literal["auto", "changes"] = "auto",
        threads: int = 1,
    ) -> None:
        """
        Args:
            mode: auto: changes or whole words, whichever is put sooner; changes: the fewest bytes.
            threads: that encode.
        """
        self._transport, self._rank = transport, rank
        self._encoders = Encoders(key, threads)
        # A transport that keeps parts with their writer is done before they cross the link, whose rate stays unknown.
        self._may_choose = mode == "auto" and transport.parts_outlive_writer
        self.rates = LinkRates()

    @property
    def num_read_at_once(self) -> int:
        """Buckets whose current words are in use at once."""
        return self._encoders.most_taken

    def delta(
        self,
        snapshot: Snapshot,
        words_of: Callable[[Bucket], Words],
        prefix: str,
        header: FrameHeader,
        deadline: Deadline,
        frozen: Collection[int] = (),
    ) -> Uploaded:
        """Put what differs from the snapshot.

        Args:
            words_of: the current words of a bucket, valid until `num_read_at_once` more were asked for.
            prefix: of the upload's keys.
            frozen: buckets whose words never change: those that were the snapshot's once are not read again.
            header: of the version; its bucket field is ignored.
        Raises:
            TransportError: a part could not be put; what was put is an orphan.
        """
        done = Uploaded(rates=self.rates)
        buckets = [bucket for bucket in snapshot.buckets if bucket.id not in snapshot.settled]
        done.unchanged.extend(snapshot.settled)
        chooses = self._may_choose and sum(bucket.num_bytes for bucket in buckets) >= _WORTH_BYTES
        form: Form = self.rates.faster() if chooses else "changes"
        if chooses and not self.rates.knows("whole"):
            job = _Job(snapshot, buckets[0], words_of(buckets[0]), "whole", header)
            self._note_rate(self._encoders.run(job))  # measured, not sent
        # Of whole words the first bucket still goes as changes, so that their rate is not forgotten.
        jobs = (
            _Job(snapshot, bucket, words_of(bucket), form if i else "changes", header)
            for i, bucket in enumerate(buckets)
        )
        with (
            _Sender(self._transport, self._rank, prefix, deadline) as sender,
            closing(self._encoders.in_order(jobs)) as results,
        ):
            for result in results:
                self._note_rate(result)
                bucket, encoded = result.bucket, result.encoded
                if encoded is None:
                    done.unchanged.append(bucket.id)
                    if bucket.id in frozen:
                        snapshot.settled.add(bucket.id)
                    continue
                done.frames.append((bucket, encoded.frame))
                done.gain = total((done.gain, encoded.digest_delta))
                self._note(done, bucket, encoded)
                sender.put(bucket.id, encoded.frame)
        self.rates.note_sent(sender.num_bytes, sender.seconds)
        return done

    def anchor(self, snapshot: Snapshot, prefix: str, layout: int, deadline: Deadline) -> Uploaded:
        """Put the whole snapshot. Raises as `delta`."""
        done = Uploaded()
        header = FrameHeader(layout, snapshot.version, snapshot.version, 0)
        jobs = (_AnchorJob(snapshot, bucket, header) for bucket in snapshot.buckets)
        with (
            _Sender(self._transport, self._rank, prefix, deadline) as sender,
            closing(self._encoders.in_order(jobs)) as results,
        ):
            for bucket, encoded in results:
                done.gain = total((done.gain, snapshot.digests[bucket.id]))
                self._note(done, bucket, encoded)
                sender.put(bucket.id, encoded.frame)
        return done

    def _note_rate(self, result: "_Result") -> None:
        bucket, encoded = result.bucket, result.encoded
        num_bytes = 0 if encoded is None else len(encoded.frame)
        # So many are encoded at once: a version is there so much sooner.
        self.rates.note_encoded(result.form, bucket.num_bytes, num_bytes, result.seconds / self._encoders.threads)

    def _note(self, done: Uploaded, bucket: Bucket, encoded: Encoded) -> None:
        done.parts.append((bucket.id, len(encoded.frame)))
        done.num_changed += encoded.num_changed


class _Result(NamedTuple):
    """A bucket encoded; `encoded` is None if no word changed."""

    bucket: Bucket
    form: Form
    encoded: Encoded | None
    seconds: float


@dataclass(frozen=True)
class _Job:
    """What turns a bucket of the snapshot into `words`."""

    snapshot: Snapshot
    bucket: Bucket
    words: Words
    form: Form
    header: FrameHeader

    def __call__(self, encoder: Encoder) -> _Result:
        snapshot, bucket, start = self.snapshot, self.bucket, perf_counter()
        make = encoder.delta if self.form == "changes" else encoder.whole
        header = self.header._replace(bucket=bucket.id)
        encoded = make(
            snapshot.words[bucket.id], self.words, header, snapshot.table(bucket), snapshot.digests[bucket.id]
        )
        return _Result(bucket, self.form, encoded, perf_counter() - start)


@dataclass(frozen=True)
class _AnchorJob:
    """A bucket of the snapshot, whole."""

    snapshot: Snapshot
    bucket: Bucket
    header: FrameHeader

    def __call__(self, encoder: Encoder) -> tuple[Bucket, Encoded]:
        snapshot, bucket = self.snapshot, self.bucket
        header = self.header._replace(bucket=bucket.id)
        return bucket, encoder.anchor(snapshot.words[bucket.id], header, snapshot.digests[bucket.id])


class _Sender:
    """One thread that puts parts while the caller encodes; what waits is bounded in bytes.

    `num_bytes`, `seconds`: put so far, and how long the transport took for them.
    """

    def __init__(self, transport: Transport, rank: int, prefix: str, deadline: Deadline) -> None:
        self._transport, self._rank, self._prefix, self._deadline = transport, rank, prefix, deadline
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weightsync-send")
        self._waiting: deque[tuple[int, Future[None]]] = deque()
        self._waiting_bytes = 0
        self.num_bytes, self.seconds = 0, 0.0

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            while self._waiting and kind is None:
                self._take_oldest()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def put(self, bucket: int, frame: bytes) -> None:
        """Send a frame; blocks while too much is on its way. Raises what an earlier put raised."""
        self._deadline.check()
        while self._waiting and (self._waiting_bytes > _IN_FLIGHT_BYTES or self._waiting[0][1].done()):
            self._take_oldest()
        key = part_key(self._prefix, self._rank, bucket)
        self._waiting.append((len(frame), self._pool.submit(self._send, key, frame)))
        self._waiting_bytes += len(frame)

    def _send(self, key: str, frame: bytes) -> None:
        start = perf_counter()
        self._transport.put_part(key, [memoryview(frame)], deadline_s=self._deadline.left())
        self.seconds += perf_counter() - start
        self.num_bytes += len(frame)

    def _take_oldest(self) -> None:
        size, future = self._waiting.popleft()
        self._waiting_bytes -= size
        future.result()
