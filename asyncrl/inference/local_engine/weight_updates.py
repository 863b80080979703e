"""Weight updates and memory, in the engine thread between two steps: sessions, loaders, disk, checksum, release.

Refusals that SGLang survives raise `Refused` (HTTP 400). What SGLang dies of raises anything else, and this server
dies of it too: an unlisted load_format, a malformed payload, an exception in a loader, memory released while busy.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from asyncrl.inference.local_engine.engine import Engine
from asyncrl.inference.local_engine.engine_loop import Refused
from asyncrl.inference.local_engine.models import Written
from asyncrl.inference.local_engine.update_payload import decode
from asyncrl.inference.local_engine.weights import WeightsMismatch

BUILT_IN_ELSEWHERE = ("flattened_bucket", "direct")
"""Load formats that SGLang has built in and this engine has not."""

TAGS = frozenset({"weights", "kv_cache", "cuda_graph"})


class MemoryTakenWhileBusy(RuntimeError):
    """release_memory_occupation came while requests ran or waited; SGLang's assertion ends its process."""


class WeightUpdates:
    """What may be done to an engine's weights. All methods run in the engine thread."""

    def __init__(self, engine: Engine, loaders: Sequence[str] = ()) -> None:
        """`loaders` are dotted names, `package.module.function`, that a request's load_format may equal."""
        self.engine, self.loaders = engine, tuple(loaders)
        self.session_open = False
        self.released: set[str] = set()

    # ---- sessions ------------------------------------------------------------------------------------------------
    def begin(self) -> str:
        """Opens the update session."""
        if self.session_open:
            raise Refused(
                "A weight update session is already open. A client that died leaves it open: call /end_weight_update, "
                "then begin again."
            )
        self.session_open = True
        return "Success"

    def end(self) -> str:
        """Closes the session."""
        if not self.session_open:
            raise Refused("No weight update session is open; call /begin_weight_update first.")
        self.session_open = False
        return "Success"

    def from_tensor(
        self, payloads: Sequence[str], load_format: str | None, *, flush_cache: bool, version: str | None
    ) -> str:
        """Runs a loader over one rank's payload, then stamps the version, then flushes.

        Raises:
            Refused: no session; a built-in format of SGLang that is not implemented here; or, with the weights
                written and the version stamped, the cache could not be flushed because requests hold it.
            Exception: whatever a loader raises.
        """
        if not self.session_open:
            raise Refused("update_weights_from_tensor outside a session; call /begin_weight_update first.")
        if load_format in BUILT_IN_ELSEWHERE:
            raise Refused(f"load_format {load_format!r} is SGLang's own and not implemented by the local engine.")
        # One payload per tensor-parallel rank; this engine is rank 0. None at all is an index error, as in SGLang.
        named_tensors = decode(payloads[0])
        if load_format is None:
            self._load(named_tensors)
        else:
            self._run_loader(load_format, named_tensors)
        return self._finish(flush_cache=flush_cache, version=version)

    def _load(self, named_tensors: list[tuple[str, Tensor]]) -> None:
        self.engine.compute.touch(self.engine.model.load_weights(named_tensors))

    def _run_loader(self, name: str, named_tensors: list[tuple[str, Tensor]]) -> None:
        if name not in self.loaders:
            raise LookupError(
                f"load_format {name!r} is none of --custom-weight-loader {list(self.loaders)}. SGLang ends its process "
                "here, so this server does."
            )
        module, _, function = name.rpartition(".")
        load = getattr(importlib.import_module(module), function)
        self.engine.model.take_written()
        try:
            with torch.no_grad():
                load(self.engine.model, named_tensors)
        finally:
            self._touch(self.engine.model.take_written())

    def _touch(self, written: Written) -> None:
        # A loader may write through numpy, which torch does not see: unless it says what, everything may have changed.
        self.engine.compute.touch(written.names if written.is_all else None)
        for name, where in written.words if written.is_all else ():
            self.engine.compute.touch_words(name, where)

    def _finish(self, *, flush_cache: bool, version: str | None) -> str:
        if version is not None:
            self.engine.set_version(version)
        if flush_cache and not self.engine.flush():
            raise Refused(
                "Weights were updated, but the cache was not flushed: requests that hold it are running. Pause with "
                "retract, or send flush_cache: false."
            )
        return "Success"

    def from_disk(self, path: str, *, flush_cache: bool, version: str | None) -> str:
        """Loads a model directory, all of it or nothing; needs no session.

        Raises:
            Refused: the files are missing or do not fit, and the weights are what they were.
        """
        try:
            self.engine.compute.touch(self.engine.model.weights.load_dir(Path(path)))
        except WeightsMismatch as error:
            raise Refused(f"Failed to update weights from {path}: {error}") from error
        return self._finish(flush_cache=flush_cache, version=version)

    # ---- reading -------------------------------------------------------------------------------------------------
    def checksum(self) -> dict[str, object]:
        """A hash of every fused parameter and of all of them; one full read of the weights."""
        hashes = {name: _hash(tensor) for name, tensor in self.engine.model.named_parameters()}
        whole = xxhash.xxh3_64_hexdigest("".join(f"{name}:{value};" for name, value in sorted(hashes.items())).encode())
        rank: Mapping[str, object] = {
            "checksums": hashes,
            "per_gpu_checksum": whole,
            "parallelism_info": [{"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}],
        }
        return {"success": True, "message": "Success", "ranks": [rank], "per_engine_checksum": whole}

    def by_name(self, name: str, truncate_size: int) -> list[object] | None:
        """What the model's `get_weights_by_name` says; None where it has none or does not know the name."""
        read = getattr(self.engine.model, "get_weights_by_name", None)
        if read is None:
            return None
        try:
            return list(read(name, truncate_size, tp_size=1))
        except (AttributeError, KeyError):
            return None

    # ---- memory --------------------------------------------------------------------------------------------------
    def release(self, tags: Sequence[str] | None) -> None:
        """Gives back compute copies (weights) and keys and values (kv_cache). The plain weights stay, as with SGLang's
        --enable-weights-cpu-backup, and may be updated meanwhile.

        Raises:
            MemoryTakenWhileBusy: a request runs or waits.
        """
        if not self.engine.idle:
            raise MemoryTakenWhileBusy(
                f"release_memory_occupation with {self.engine.rows.num} running and {len(self.engine.waiting)} waiting "
                "requests: wait for them, or pause with abort, before releasing."
            )
        wanted = set(tags or TAGS) - self.released
        if "weights" in wanted:
            self.engine.compute.release()
        if "kv_cache" in wanted:
            self.engine.release_cache()
        self.released |= wanted & TAGS
        _return_free_memory()

    def resume(self, tags: Sequence[str] | None) -> None:
        """Makes the copies again from the plain weights; keys and values get their memory with the next request."""
        self.released -= set(tags or TAGS)
        if "weights" not in self.released:
            self.engine.compute.refresh()


def _hash(tensor: Tensor) -> str:
    return xxhash.xxh3_64_hexdigest(tensor.view(torch.uint8).numpy().data)


def _return_free_memory() -> None:
    """Asks glibc to give freed pages back to the system: without it the process keeps its size."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
