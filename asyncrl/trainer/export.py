"""Weights as a Hugging Face model directory, from a checkpoint or the live policy, for transformers and servers."""

import json
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from asyncrl.config import Config
from asyncrl.errors import CheckpointError, ExportError
from asyncrl.trainer.adapter_files import write_adapter
from asyncrl.trainer.checkpoint import Checkpoints, Saved
from asyncrl.trainer.checkpoint_files import sync_directory
from asyncrl.trainer.lora import merged_tensors
from asyncrl.trainer.parallel import Ranks
from asyncrl.trainer.policy import Policy
from asyncrl.trainer.policy_state import WEIGHTS
from asyncrl.trainer.rank_files import RankFiles
from asyncrl.trainer.stored import gathered, stored_tensors_of, whole_tensors
from weightsync.errors import ModelDirError
from weightsync.manifest import Manifest
from weightsync.shard import untrained_shards

MARK = "asyncrl.json"
"""File that says an export is ours, so that a later one may take its place."""
ADAPTER = "adapter"
"""Folder of an export that holds the adapter in peft's form, where one was trained."""
MAX_FILE_BYTES = 4 << 30
WEIGHT_FILES = (".safetensors", ".bin", ".gguf", ".safetensors.index.json", ".bin.index.json")

NamedTensors = Iterable[tuple[str, Tensor]]


def export_checkpoint(directory: Path, config: Config, output: Path, *, chosen: Saved | None = None) -> Path:
    """Write a checkpoint in `directory`, of any number of ranks, as a model directory; returns `output`.

    Args:
        chosen: the checkpoint; None: the newest complete one.
    Raises:
        CheckpointError: there is no checkpoint, or none is sound.
        ExportError: `output` exists, or cannot be written.
    """
    saved = chosen or Checkpoints(directory, config.trainer.checkpoint).newest()
    if saved is None:
        raise CheckpointError(f"{directory} holds no checkpoint to export. Train first, or set run.name or run.dir.")
    if output.exists():
        raise ExportError(f"{output} exists; an export does not replace what it finds. Remove it or name another.")
    with RankFiles(saved.path) as files:
        names = sorted(name.removeprefix(WEIGHTS) for name in files.names() if name.startswith(WEIGHTS))
        tensors = ((name, files.read(WEIGHTS + name)) for name in names)
        origin = {"checkpoint": str(saved.path), "version": f"{saved.name.branch}.{saved.name.number}"}
        _write(output, tensors, saved.state.get("lora"), config, origin)
    return output


def export_policy(policy: Policy, config: Config, output: Path, version: str, ranks: Ranks) -> Path:
    """Write the live policy as a model directory, in place of an earlier export; every rank calls it together.

    Raises:
        ExportError: `output` exists and is not an export of ours, or cannot be written.
    """
    tensors = gathered(policy.named_parameters())
    if ranks.rank == 0:
        _write(output, tensors, policy.weights.facts().get("lora"), config, {"version": version})
    else:
        for _ in tensors:  # its shard of each is asked for by rank 0
            pass
    return output


def _write(
    output: Path, trained: NamedTensors, lora: Mapping[str, Any] | None, config: Config, origin: Mapping[str, str]
) -> None:
    """Write what was trained: all weights, or an adapter and, by lora.export_merged, the weights with it added.

    Args:
        lora: facts of the adapter, as a checkpoint keeps them; None: all weights were trained.
    """
    model_dir, wire_dtype = config.model.path, config.model.wire_dtype
    if lora is None:
        write_model(output, whole_tensors(stored_tensors_of(model_dir), trained), model_dir, wire_dtype, origin)
        return
    adapter = dict(trained)
    merged = merged_tensors(model_dir, adapter, lora["alpha"] / lora["rank"]) if config.lora.export_merged else None

    def beside(directory: Path) -> None:
        facts = {"rank": lora["rank"], "alpha": lora["alpha"], "targets": lora["target_modules"]}
        write_adapter(directory / ADAPTER, adapter, base=model_dir, **facts)

    write_model(output, merged, model_dir, wire_dtype, origin, beside=beside)


def write_model(
    output: Path,
    tensors: NamedTensors | None,
    model_dir: Path,
    wire_dtype: str,
    origin: Mapping[str, str],
    *,
    beside: Callable[[Path], None] | None = None,
) -> None:
    """Write weights in the dtypes of `model_dir`, beside its tokenizer and settings; the directory appears at once.

    Args:
        tensors: name and value of each tensor; each is let go before the next is asked for. None: no weights.
        model_dir: the run's version 0, for everything but weights.
        origin: what the weights are of; kept in the directory.
        beside: writes what else belongs into the directory.
    Raises:
        ExportError: `output` is in the way and not ours, or the disk is full.
    """
    if output.exists() and not (output / MARK).is_file():
        raise ExportError(
            f"{output} exists and was not exported by asyncrl, so it is left alone. Remove it, or export elsewhere."
        )
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        _copy_settings(model_dir, temporary, wire_dtype)
        if tensors is not None:
            _write_weights(temporary, *_as_it_began(tensors, model_dir), getattr(torch, wire_dtype))
        if beside is not None:
            beside(temporary)
        (temporary / MARK).write_text(json.dumps(origin) + "\n", encoding="utf-8")
        sync_directory(temporary)
        if output.exists():
            old = output.rename(output.with_name(f".{output.name}.{secrets.token_hex(4)}"))
            temporary.rename(output)
            shutil.rmtree(old)
        else:
            temporary.rename(output)
        sync_directory(output.parent)
    except (OSError, SafetensorError, ModelDirError) as error:
        raise ExportError(
            f"The weights could not be exported to {output}: {error}. Free some space, or export elsewhere; the "
            "checkpoints hold the same weights."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _copy_settings(model_dir: Path, target: Path, wire_dtype: str) -> None:
    for path in model_dir.iterdir():
        if path.is_file() and not path.name.endswith(WEIGHT_FILES) and path.name != "starter.json":
            shutil.copyfile(path, target / path.name)
    settings = json.loads((target / "config.json").read_text(encoding="utf-8"))
    settings |= {"torch_dtype": wire_dtype, "dtype": wire_dtype}
    (target / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _as_it_began(tensors: NamedTensors, model_dir: Path) -> tuple[NamedTensors, dict[str, torch.dtype]]:
    """The tensors with those of `model_dir` that were not trained, and the dtype that each has there."""
    manifest = Manifest.from_model_dir(model_dir)

    def every() -> NamedTensors:
        names = set()
        for name, tensor in tensors:
            names.add(name)
            yield name, tensor
        yield from ((shard.name, shard.tensor) for shard in untrained_shards(model_dir, manifest, names))

    return every(), {name: getattr(torch, dtype) for name, dtype in manifest.dtypes.items()}


def _write_weights(
    directory: Path, tensors: NamedTensors, dtypes: Mapping[str, torch.dtype], dtype: torch.dtype
) -> None:
    """Files of at most MAX_FILE_BYTES, named and indexed as transformers does it; `dtype` for names without one."""
    parts: list[list[str]] = []
    open_part: dict[str, Tensor] = {}
    size = total = 0

    def close_part() -> None:
        save_file(open_part, directory / _part_name(len(parts)), {"format": "pt"})
        parts.append(list(open_part))
        open_part.clear()

    for name, tensor in tensors:
        stored = tensor.detach().to("cpu", dtypes.get(name, dtype)).contiguous()
        if open_part and size + stored.nbytes > MAX_FILE_BYTES:
            close_part()
            size = 0
        open_part[name] = stored
        size += stored.nbytes
        total += stored.nbytes
    close_part()
    if len(parts) == 1:
        (directory / _part_name(0)).rename(directory / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for index, names in enumerate(parts):
        final = f"model-{index + 1:05d}-of-{len(parts):05d}.safetensors"
        (directory / _part_name(index)).rename(directory / final)
        weight_map |= dict.fromkeys(names, final)
    index_text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2, sort_keys=True)
    (directory / "model.safetensors.index.json").write_text(index_text + "\n", encoding="utf-8")


def _part_name(index: int) -> str:
    return f"part-{index:05d}.safetensors"
