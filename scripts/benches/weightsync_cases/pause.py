"""How long a server stands still for a version, against reloading its weights from a directory.

The server, our local one or SGLang where an environment with it is, is a process and is asked over HTTP as the host
does: prepare, while it goes on; then pause, begin, load, end with status, stamp, resume. Versions are published and
staged by the product while nothing samples. A reload is the same server's own route on a directory that was just
written, whose files are in the system's memory, and again after they were dropped from there, as on a machine that did
not write them. What an engine does about changed weights before its next step is in neither figure, and printed by
itself: the first token after an update, less another.
"""

import asyncio
import os
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asyncrl.inference.activation import Held, Pausing, activate, prepare
from asyncrl.inference.client import ServerClient
from asyncrl.inference.launcher import LaunchSpec, reserve_port
from asyncrl.inference.protocol import Sampling
from asyncrl.inference.server import StartedServer
from scripts.benches.weightsync_cases.pairs import Figures, Pair, percent
from scripts.benches.weightsync_cases.sync import Sync, running_sync
from scripts.benches.weightsync_cases.training import Shape, Trained
from weightsync.versions import label, pack

PAUSING = Pausing(kv="recompute", num_ranks=1, deadline_s=120.0)
RELOADS, FIRST_TOKENS = 5, 3
START_S = 300.0
CALLS = ("pause", "begin_update", "load_staged", "end_update", "weight_status", "set_version", "resume")


def compare(shape: Shape, model: Trained, fraction: float, versions: int) -> Figures:
    """Milliseconds of the local server's pause and its parts, over `versions` versions; reload over pause."""
    return _compare(shape, model, fraction, versions, "local", None)


def compare_sglang(shape: Shape, model: Trained, fraction: float, versions: int, python: Path) -> Figures:
    """The same of SGLang, started without a device by an interpreter of its environment."""
    found = _compare(shape, model, fraction, versions, "sglang", python)
    return {f"sglang_{name}": value for name, value in found.items()}


def _compare(shape: Shape, model: Trained, fraction: float, versions: int, engine: str, python: Path | None) -> Figures:
    with running_sync(shape, Pair.at(model, fraction)) as sync:
        found = asyncio.run(_serve_and_measure(sync, _server(sync, engine, python), shape.vocab, versions))
    where = percent(fraction)
    return {f"{name}_{where}": value for name, value in found.items()}


async def _serve_and_measure(sync: Sync, server: StartedServer, vocab: int, versions: int) -> Figures:
    url = server.url()
    client = _Timed(url, vocab_size=vocab)
    try:
        await server.begin(url, sync.directory / "stage", client)
        return await _measure(sync, client, versions)
    finally:
        await client.close()
        await server.end()


async def _measure(sync: Sync, client: "_Timed", versions: int) -> Figures:
    pauses, syncs, preparing, first, parts = [], [], [], [], defaultdict(list)
    held = Held(0, sync.publisher.digest_of(0) or 0)
    for turn in range(versions + 1):
        start = time.perf_counter()
        await asyncio.to_thread(sync.publish)
        staged = await asyncio.to_thread(sync.receiver.stage, held.version)
        assert staged is not None, "nothing was staged"
        staged_s = time.perf_counter()
        await prepare(client, staged, deadline_s=PAUSING.deadline_s)
        preparing.append(time.perf_counter() - staged_s)
        client.seconds.clear()
        activated = await activate(client, staged, held=held, pausing=PAUSING)
        held = Held(staged.target, staged.digest)
        sync.receiver.acknowledge(held.version, held.digest)
        if turn == 0:
            continue  # records the address map and measures every word, once
        syncs.append(time.perf_counter() - start)
        pauses.append(activated.pause_s)
        for call in CALLS:
            parts[call].append(client.seconds[call])
        if turn <= FIRST_TOKENS:
            after = await _token(client)
            first.append(after - await _token(client))
    cached = await _reloads(client, sync, cached=True)
    cold = await _reloads(client, sync, cached=False)
    pause = statistics.median(pauses)
    return {
        "pause_ms": round(1e3 * pause, 1),
        "pause_load_ms": round(1e3 * statistics.median(parts["load_staged"]), 1),
        "pause_http_ms": round(1e3 * (pause - statistics.median(parts["load_staged"])), 1),
        "pause_p99_ms": round(1e3 * sorted(pauses)[min(len(pauses) - 1, int(0.99 * len(pauses)))], 1),
        "prepare_ms": round(1e3 * statistics.median(preparing[1:]), 1),
        "pause_of_sync": round(statistics.median(p / s for p, s in zip(pauses, syncs, strict=True)), 3),
        "sync_ms": round(1e3 * statistics.median(syncs), 1),
        "repack_ms": round(1e3 * statistics.median(first), 1),
        "reload_ms": round(1e3 * statistics.median(cached), 1),
        "reload_cold_ms": round(1e3 * statistics.median(cold), 1),
        "reload_over_pause": round(statistics.median(cached) / pause, 2),
        "reload_cold_over_pause": round(statistics.median(cold) / pause, 2),
        "versions": float(len(pauses)),
    }


async def _reloads(client: ServerClient, sync: Sync, *, cached: bool) -> list[float]:
    """Pause, load the directory, resume: what a server without deltas does for every version."""
    found = []
    with TemporaryDirectory(prefix="asyncrl-bench-") as scratch:
        model_dir = shutil.copytree(sync.directory / "model", Path(scratch) / "model")
        for _ in range(RELOADS):
            if not cached:
                _drop_from_memory(model_dir)
            start = time.perf_counter()
            await client.pause("retract")
            await client.load_from_disk(model_dir, label(pack(0, 0)))
            await client.resume()
            found.append(time.perf_counter() - start)
    return found


def _drop_from_memory(directory: Path) -> None:
    """Have the system read these files from the disk again."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def _token(client: ServerClient) -> float:
    """Seconds of a request for one token."""
    sampling = Sampling(1, temperature=1.0, top_p=1.0, top_k=-1, stop_token_ids=(), seed=0)
    start = time.perf_counter()
    await client.generate([1, 2, 3, 4], sampling, extra_key=str(start), deadline_s=120.0)
    return time.perf_counter() - start


class _Timed(ServerClient):
    """Notes the seconds of every control call."""

    def __init__(self, url: str, *, vocab_size: int) -> None:
        super().__init__(url, vocab_size=vocab_size)
        self.seconds: dict[str, float] = defaultdict(float)
        for name in CALLS:
            setattr(self, name, self._timed(name, getattr(self, name)))

    # Any: each call has arguments and an answer of its own.
    def _timed(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return await call(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed


def _server(sync: Sync, engine: str, python: Path | None) -> StartedServer:
    """A server of that engine on the run's model, with its stage directory."""

    def make_spec(port: int, stage_dir: Path) -> LaunchSpec:
        # Without a tokenizer in the directory, which SGLang would look for.
        extra = ("--skip-tokenizer-init",) if python is not None else ()
        model_dir = sync.directory / "model"
        return LaunchSpec(
            model_dir, "127.0.0.1", port, stage_dir, "bfloat16", 4, 256, 0, python=python, extra_args=extra
        )

    return StartedServer(
        engine,
        engine=engine,
        make_spec=make_spec,
        reserve_port=lambda: reserve_port("127.0.0.1", 0),
        host="127.0.0.1",
        log=sync.directory / "server.log",
        start_timeout_s=START_S,
    )
