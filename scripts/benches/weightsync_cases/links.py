"""A version end to end over sockets that are paced to a link's rate: as frames, and as dense words, on the same code.

Two processes: the sender encodes buckets, two at once as the trainer does by default, while the ones before are on
their way; the receiver checks and adds while the next arrive and answers with the digest's gain, which must be the
encoder's. Dense is a copy into place without digest or check, which flatters it and which no transport of ours does;
whole is what `mode: auto` has besides changes: all words, sealed, checked and measured. The three take turns; figures
are the median of rounds of wall seconds. What auto takes follows from the rates of these rounds, as a rank's does.
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
from weightsync.digest import digest_of_bucket, total
from weightsync.encoders import Encoders
from weightsync.layout import Bucket
from weightsync.link_rates import Form, LinkRates

HEAD = struct.Struct("<BQQ")
ANSWER = struct.Struct("<Qd")
FRAME, DENSE, END, STOP = range(4)
FORMS: tuple[Form, ...] = ("changes", "whole")
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
    _send_at_once(stream)
    figures, encoders = Figures(), Encoders(threads=WeightsyncConfig().encoder_threads)
    try:
        for form in FORMS:  # once: kernels are compiled, memory is there
            _send_frames(_Pace(stream, None), pair, form, encoders, LinkRates())
            _send_dense(_Pace(stream, None), pair)
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
    seconds: dict[str, list[float]] = {"changes": [], "whole": [], "dense": []}
    rates = LinkRates()
    for _ in range(rounds):
        for form in FORMS:
            pace = _Pace(stream, link)
            seconds[form].append(_seconds(partial(_send_frames, pace, pair, form, encoders, rates)))
            rates.note_sent(pace.num_bytes, pace.seconds)
            seconds["dense"].append(_seconds(partial(_send_dense, _Pace(stream, link), pair)))  # the base is back
    name = "unpaced" if link is None else f"{link:g}gbps"
    median = {form: statistics.median(found) for form, found in seconds.items()}
    chosen = rates.faster()
    return {
        f"vs_dense_{name}": round(median["dense"] / median["changes"], 2),
        f"vs_dense_{name}_best": round(min(seconds["dense"]) / min(seconds["changes"]), 2),
        f"frames_s_{name}": round(median["changes"], 3),
        f"whole_s_{name}": round(median["whole"], 3),
        f"dense_s_{name}": round(median["dense"], 3),
        f"auto_takes_whole_{name}": float(chosen == "whole"),
        f"auto_over_faster_{name}": round(median[chosen] / min(median["changes"], median["whole"]), 3),
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

    def end(self) -> tuple[int, float]:
        """The receiver's answer when it is done: the digest's gain, and seconds that it checked and applied."""
        self._stream.sendall(HEAD.pack(END, 0, 0))
        answer = bytearray(ANSWER.size)
        _read(self._stream, memoryview(answer))
        gain, seconds = ANSWER.unpack(answer)
        return int(gain), float(seconds)


def _send_frames(pace: "_Pace", pair: Pair, form: Form, encoders: Encoders, rates: LinkRates) -> None:
    waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(QUEUED)
    failed: list[BaseException] = []

    def send() -> None:
        while (one := waiting.get()) is not None:
            try:
                pace.send(FRAME, one[0], memoryview(one[1]))
            except OSError as error:
                failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    gains = []
    with closing(encoders.in_order(partial(_encoded, pair, bucket, form) for bucket in pair.plan.buckets)) as results:
        for bucket, encoded, seconds in results:
            num_bytes = 0 if encoded is None else len(encoded.frame)
            rates.note_encoded(form, bucket.num_bytes, num_bytes, seconds / encoders.threads)
            if encoded is not None:
                gains.append(encoded.digest_delta)
                waiting.put((bucket.id, encoded.frame))
    waiting.put(None)
    thread.join()
    if failed:
        raise failed[0]
    gain, applying_s = pace.end()
    assert gain == total(gains), "the receiver went through another change"
    rates.note_applied(form, sum(bucket.num_bytes for bucket in pair.plan.buckets), applying_s)


def _encoded(pair: Pair, bucket: Bucket, form: Form, encoder: Encoder) -> tuple[Bucket, Encoded | None, float]:
    old, new, table = pair.snapshot[bucket.id], pair.staged[bucket.id], pair.tables[bucket.id]
    make, start = encoder.delta if form == "changes" else encoder.whole, time.perf_counter()
    return bucket, make(old, new, pair.header(bucket), table, 0), time.perf_counter() - start


def _send_dense(pace: "_Pace", pair: Pair) -> None:
    for bucket in pair.plan.buckets:
        pace.send(DENSE, bucket.id, memoryview(pair.snapshot[bucket.id]).cast("B"))
    pace.end()


def _receive(port: int, pair: Pair) -> None:
    """The other process: check, add, answer."""
    stream = socket.create_connection(("127.0.0.1", port))
    _send_at_once(stream)
    held = {bucket: words.copy() for bucket, words in pair.snapshot.items()}
    buffer = memoryview(bytearray(max(words.nbytes for words in held.values()) + 4096))
    head, gains, seconds = memoryview(bytearray(HEAD.size)), [], 0.0
    while True:
        _read(stream, head)
        kind, index, size = HEAD.unpack(head)
        if kind == STOP:
            return
        if kind == END:
            stream.sendall(ANSWER.pack(total(gains), seconds))
            gains, seconds = [], 0.0
        elif kind == DENSE:
            _read(stream, memoryview(held[index]).cast("B"))
        else:
            _read(stream, buffer[:size])
            bucket, table, start = pair.plan.buckets[index], pair.tables[index], time.perf_counter()
            frame = open_frame(buffer[:size], bucket=bucket, header=pair.header(bucket))
            gain = frame.apply(held[index], table)
            if frame.dense is not None and total((digest_of_bucket(held[index], table),)) != frame.digest_after:
                raise AssertionError("the words do not have the digest that their frame says")
            gains.append(gain)
            seconds += time.perf_counter() - start


def _send_at_once(stream: socket.socket) -> None:
    """As the product's sockets do: else the last small message waits 40 ms for the reader's delayed answer."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _read(stream: socket.socket, target: memoryview) -> None:
    at = 0
    while at < len(target):
        count = stream.recv_into(target[at:], 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError("the other process of the benchmark ended")
        at += count
