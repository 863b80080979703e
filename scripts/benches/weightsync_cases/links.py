"""A version end to end over sockets that are paced to a link's rate: as frames, and as dense words, on the same code.

Two processes: the sender encodes buckets, two at once as the trainer does by default, while the ones before are on
their way; the receiver checks and adds while the next arrive and answers with the digest's gain, which must be the
encoder's. Dense is a copy into place without digest
or check, which flatters it. Frames and dense take turns; figures are the median of rounds of wall seconds.
"""

import multiprocessing as mp
import queue
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from scripts.benches.weightsync_cases.pairs import Figures, Pair
from scripts.benches.weightsync_cases.training import Trained
from weightsync.codec import Encoded, Encoder, open_frame
from weightsync.config import WeightsyncConfig
from weightsync.digest import total
from weightsync.encoders import Encoders
from weightsync.layout import Bucket
from weightsync.link_rates import LinkRates

HEAD = struct.Struct("<BQQ")
FRAME, DENSE, END, STOP = range(4)
QUEUED = 4
START_S = 300.0


def compare(model: Trained, fraction: float, links: Sequence[float | None], rounds: int) -> Figures:
    """Dense over frames by link; None is a link that is not paced. What `mode: auto` would take is printed beside."""
    pair = Pair.at(model, fraction)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(START_S)
    process = mp.get_context("fork").Process(target=_receive, args=(listener.getsockname()[1], pair))
    process.start()
    stream, _ = listener.accept()
    figures, encoders = Figures(), Encoders(threads=WeightsyncConfig().encoder_threads)
    try:
        _send_frames(stream, pair, None, encoders)
        _send_dense(stream, pair, None)
        for link in links:
            figures |= _compare(stream, pair, link, rounds, encoders)
        stream.sendall(HEAD.pack(STOP, 0, 0))
    finally:
        stream.close()
        listener.close()
        process.join(10)
        process.kill()
    return figures


def _compare(stream: socket.socket, pair: Pair, link: float | None, rounds: int, encoders: Encoders) -> Figures:
    frames, dense = [], []
    for _ in range(rounds):
        frames.append(_seconds(lambda: _send_frames(stream, pair, link, encoders)))
        dense.append(_seconds(lambda: _send_dense(stream, pair, link)))
    name = "unpaced" if link is None else f"{link:g}gbps"
    chosen, right = _auto(stream, pair, link), statistics.median(dense) < statistics.median(frames)
    return {
        f"vs_dense_{name}": round(statistics.median(dense) / statistics.median(frames), 2),
        f"vs_dense_{name}_best": round(min(dense) / min(frames), 2),
        f"frames_s_{name}": round(statistics.median(frames), 3),
        f"dense_s_{name}": round(statistics.median(dense), 3),
        f"auto_takes_dense_{name}": float(chosen),
        f"dense_is_faster_{name}": float(right),
    }


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class _Pace:
    """A link of so many Gb/s: what is sent takes as long as it would there; the socket's own time counts inside."""

    def __init__(self, stream: socket.socket, link: float | None) -> None:
        self._stream, self._link = stream, link
        self._free = time.perf_counter()
        self.num_bytes, self.seconds = 0, 0.0

    def send(self, kind: int, bucket: int, body: memoryview) -> None:
        """One message, done when the link would be free again."""
        start = time.perf_counter()
        self._free = max(self._free, start)
        self._stream.sendall(HEAD.pack(kind, bucket, len(body)))
        self._stream.sendall(body)
        if self._link is not None:
            self._free += len(body) * 8 / self._link / 1e9
            time.sleep(max(0.0, self._free - time.perf_counter()))
        self.num_bytes += len(body)
        self.seconds += time.perf_counter() - start


def _send_frames(stream: socket.socket, pair: Pair, link: float | None, encoders: Encoders) -> None:
    waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(QUEUED)
    failed: list[BaseException] = []

    def send() -> None:
        pace = _Pace(stream, link)
        while (one := waiting.get()) is not None:
            try:
                pace.send(FRAME, one[0], memoryview(one[1]))
            except OSError as error:
                failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    gains = []
    with closing(encoders.in_order(partial(_encoded, pair, bucket) for bucket in pair.plan.buckets)) as results:
        for bucket, encoded in results:
            if encoded is not None:
                gains.append(encoded.digest_delta)
                waiting.put((bucket.id, encoded.frame))
    waiting.put(None)
    thread.join()
    if failed:
        raise failed[0]
    assert _end(stream) == total(gains), "the receiver went through another change"


def _encoded(pair: Pair, bucket: Bucket, encoder: Encoder) -> tuple[Bucket, Encoded | None]:
    old, new, table = pair.snapshot[bucket.id], pair.staged[bucket.id], pair.tables[bucket.id]
    return bucket, encoder.delta(old, new, pair.header(bucket), table, 0)


def _send_dense(stream: socket.socket, pair: Pair, link: float | None) -> None:
    pace = _Pace(stream, link)
    for bucket in pair.plan.buckets:
        pace.send(DENSE, bucket.id, memoryview(pair.snapshot[bucket.id]).cast("B"))  # so that the base is back
    _end(stream)


def _auto(stream: socket.socket, pair: Pair, link: float | None) -> bool:
    """What `mode: auto` takes by the rates of one bucket in both forms."""
    rates, encoder, bucket = LinkRates(), Encoder(), pair.plan.buckets[0]
    old, new, table = pair.snapshot[bucket.id], pair.staged[bucket.id], pair.tables[bucket.id]
    for form, make in (("changes", encoder.delta), ("whole", encoder.whole)) * 2:
        start = time.perf_counter()
        encoded = make(old, new, pair.header(bucket), table, 0)
        assert encoded is not None
        rates.note_encoded(
            "changes" if form == "changes" else "whole", old.nbytes, len(encoded.frame), time.perf_counter() - start
        )
    pace = _Pace(stream, link)
    pace.send(DENSE, bucket.id, memoryview(old).cast("B"))
    _end(stream)
    rates.note_sent(pace.num_bytes, pace.seconds)
    return rates.faster() == "whole"


def _end(stream: socket.socket) -> int:
    """The receiver's answer when it is done: the digest's gain."""
    stream.sendall(HEAD.pack(END, 0, 0))
    answer = bytearray(8)
    _read(stream, memoryview(answer))
    return int.from_bytes(answer, "little")


def _receive(port: int, pair: Pair) -> None:
    """The other process: check, add, answer."""
    stream = socket.create_connection(("127.0.0.1", port))
    held = {bucket: words.copy() for bucket, words in pair.snapshot.items()}
    buffer = memoryview(bytearray(max(words.nbytes for words in held.values()) + 4096))
    head, gains = memoryview(bytearray(HEAD.size)), []
    while True:
        _read(stream, head)
        kind, index, size = HEAD.unpack(head)
        if kind == STOP:
            return
        if kind == END:
            stream.sendall(total(gains).to_bytes(8, "little"))
            gains = []
        elif kind == DENSE:
            _read(stream, memoryview(held[index]).cast("B"))
        else:
            _read(stream, buffer[:size])
            bucket = pair.plan.buckets[index]
            frame = open_frame(buffer[:size], bucket=bucket, header=pair.header(bucket))
            gains.append(frame.apply(held[index], pair.tables[index]))


def _read(stream: socket.socket, target: memoryview) -> None:
    at = 0
    while at < len(target):
        count = stream.recv_into(target[at:], 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the other process of the benchmark ended")
        at += count
