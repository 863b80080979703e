"""One server's use of a shared stage, step after step, for a test that kills it anywhere."""

from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from weightsync.layout import Bucket, Segment, Words
from weightsync.path_writer import Parts
from weightsync.shared_stage import SharedStage
from weightsync.ticket import PartsWriter
from weightsync.transport.base import Deadline

WORDS, BUCKETS = 500, 3


def content(step: int, bucket: int) -> Words:
    """What a bucket of a step holds."""
    return np.random.default_rng([step, bucket]).integers(0, 1 << 16, WORDS, dtype=np.uint16)


def work(root: Path, name: str, num_steps: int, pipe: Connection) -> None:
    """Bring every step, asking before each bucket, and compare every word. Says what it does and waits for leave."""
    shared = SharedStage(root / "shared", name)
    into = root / name
    into.mkdir(exist_ok=True)
    for step in range(num_steps):

        def download(folder: Path, file: str, step: int = step) -> Parts:
            writer = PartsWriter(folder, file)
            for i in range(BUCKETS):
                _ask(pipe, "writes", step)
                writer.add(Bucket(i, 0, 2, (Segment("w", i * WORDS, WORDS),)), None, content(step, i))
            _ask(pipe, "finishes", step)
            return Parts(file, writer.finish(), tuple(writer.entries))

        parts = shared.bring(f"{step}-abc", into, download, Deadline(60.0, "test"))
        assert parts is not None
        _ask(pipe, "has", step)
        blob = np.fromfile(into / parts.name, np.uint8)
        for entry in parts.entries:
            found = blob[entry.at : entry.at + 2 * WORDS].view(np.uint16)
            assert np.array_equal(found, content(step, entry.bucket)), f"step {step} has other words"
        assert len(parts.entries) == BUCKETS
        for old in into.glob("parts-*"):
            if old.name != parts.name:
                old.unlink()
        shared.sweep(f"{step}-abc")
        _ask(pipe, "swept", step)
    pipe.send(("done", num_steps))
    pipe.recv()
    shared.close()


def _ask(pipe: Connection, what: str, step: int) -> None:
    pipe.send((what, step))
    pipe.recv()
