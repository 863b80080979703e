"""Encode a rank's buckets and put their parts, one part on its way while the next is encoded."""

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

from weightsync.codec import Encoded, Encoder, FrameHeader
from weightsync.digest import total
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
        self, transport: Transport, rank: int, key: bytes | None, mode: Literal["auto", "changes"] = "auto"
    ) -> None:
        """`mode`: auto: changes or whole words, whichever is put sooner; changes: the fewest bytes."""
        self._transport, self._rank = transport, rank
        self._encoder = Encoder(key)
        # A transport that keeps parts with their writer is done before they cross the link, whose rate stays unknown.
        self._may_choose = mode == "auto" and transport.parts_outlive_writer
        self.rates = LinkRates()

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
            words_of: the current words of a bucket.
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
        with _Sender(self._transport, self._rank, prefix, deadline) as sender:
            for i, bucket in enumerate(buckets):
                if i == 0 and chooses and not self.rates.knows("whole"):
                    self._encode("whole", snapshot, bucket, words_of(bucket), header)  # measured, not sent
                # Of whole words the first bucket still goes as changes, so that their rate is not forgotten.
                chosen = form if i else "changes"
                encoded = self._encode(chosen, snapshot, bucket, words_of(bucket), header)
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
        with _Sender(self._transport, self._rank, prefix, deadline) as sender:
            for bucket in snapshot.buckets:
                header = FrameHeader(layout, snapshot.version, snapshot.version, bucket.id)
                digest = snapshot.digests[bucket.id]
                encoded = self._encoder.anchor(snapshot.words[bucket.id], header, digest)
                done.gain = total((done.gain, digest))
                self._note(done, bucket, encoded)
                sender.put(bucket.id, encoded.frame)
        return done

    def _encode(
        self, form: Form, snapshot: Snapshot, bucket: Bucket, words: Words, header: FrameHeader
    ) -> Encoded | None:
        start = perf_counter()
        make = self._encoder.delta if form == "changes" else self._encoder.whole
        old, table, digest = snapshot.words[bucket.id], snapshot.table(bucket), snapshot.digests[bucket.id]
        encoded = make(old, words, header._replace(bucket=bucket.id), table, digest)
        num_bytes = 0 if encoded is None else len(encoded.frame)
        self.rates.note_encoded(form, bucket.num_bytes, num_bytes, perf_counter() - start)
        return encoded

    def _note(self, done: Uploaded, bucket: Bucket, encoded: Encoded) -> None:
        done.parts.append((bucket.id, len(encoded.frame)))
        done.num_changed += encoded.num_changed


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
