"""What the starter made, and from which settings: written beside it, so that nothing of anybody's is overwritten."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from blake3 import blake3

from asyncrl.errors import ConfigError

FORMAT = 1
IN_DIRECTORY = "starter.json"
Spec = Mapping[str, object]


def make_directory(path: Path, key: str, spec: Spec, write: Callable[[Path], None]) -> bool:
    """Make a directory with `write` unless it is there. Returns whether it was made.

    The directory appears under its name at once and complete, with its record inside.
    Args:
        key: the configuration key that names the directory, for messages.
    Raises:
        ConfigError: it is there, but incomplete, changed since it was made, or made from other settings.
    """
    if path.is_dir() and any(path.iterdir()):
        record = path / IN_DIRECTORY
        if record.is_file():
            _compare(path, key, json.loads(record.read_text(encoding="utf-8")), spec, path)
        elif not (path / "config.json").is_file() or not any(path.glob("*.safetensors")):
            raise ConfigError(
                f"{key} = {path} exists but holds no complete model (config.json and *.safetensors). It was not made "
                f"by the starter, so it is left alone. Remove it, or set {key} to another directory."
            )
        return False
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        write(temporary)
        temporary.chmod(0o755)
        for file in temporary.iterdir():
            file.chmod(0o644)  # temporary names are private, and a server may run as another user
        record_text = _record(spec, {file.name: file for file in sorted(temporary.iterdir())})
        (temporary / IN_DIRECTORY).write_text(record_text, encoding="utf-8")
        _sync_tree(temporary)
        temporary.replace(path)  # an empty directory in the way is replaced, one with files is an error
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def make_file(path: Path, key: str, spec: Spec, write: Callable[[Path], None]) -> bool:
    """Make a file with `write` unless it is there; its record lies beside it. Returns whether it was made.

    Args:
        key: the configuration key that names the file, for messages.
    Raises:
        ConfigError: it is there, but changed since it was made or made from other settings.
    """
    record = path.with_name(f"{path.name}.{IN_DIRECTORY}")
    if path.exists():
        if record.is_file():
            _compare(path, key, json.loads(record.read_text(encoding="utf-8")), spec, path.parent)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        # The record first: a crash in between leaves a record without its file, and the file is made again.
        record.write_text(_record(spec, {path.name: temporary}), encoding="utf-8")
        _sync(temporary)
        _sync(record)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _record(spec: Spec, files: Mapping[str, Path]) -> str:
    hashes = {name: blake3(file.read_bytes()).hexdigest() for name, file in files.items()}
    return json.dumps({"format": FORMAT, "spec": spec, "files": hashes}, indent=2, sort_keys=True) + "\n"


def _compare(path: Path, key: str, record: Mapping[str, object], spec: Spec, base: Path) -> None:
    remedy = (
        f"Nothing was overwritten. Remove {path}, set {key} to another place, or set starter: null to use it as it is."
    )
    made_from, files = record.get("spec"), record.get("files")
    if record.get("format") != FORMAT or not isinstance(made_from, dict) or not isinstance(files, dict):
        raise ConfigError(
            f"{key} = {path} was made by another version of the starter (record format {record.get('format')}, "
            f"this one reads {FORMAT}). {remedy}"
        )
    wanted = json.loads(json.dumps(spec))
    for name in sorted({*made_from, *wanted}):
        if made_from.get(name) != wanted.get(name):
            raise ConfigError(
                f"{key} = {path} was made with {name} = {made_from.get(name)}, the configuration says "
                f"{wanted.get(name)}. {remedy}"
            )
    for name, expected in files.items():
        file = base / name
        if not file.is_file():
            raise ConfigError(f"{key} = {path} is incomplete: {name} is gone since the starter made it. {remedy}")
        if blake3(file.read_bytes()).hexdigest() != expected:
            raise ConfigError(f"{key} = {path} was changed: {name} is not what the starter made. {remedy}")


def _sync_tree(directory: Path) -> None:
    for file in directory.rglob("*"):
        _sync(file)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
