"""What identifies a data set: the bytes of its files and the settings that choose its rows."""

import json
from collections.abc import Iterable
from pathlib import Path

from blake3 import blake3

_CHUNK_BYTES = 1 << 20


def file_digest(path: Path) -> str:
    """blake3 of a file's bytes, streamed."""
    digest = blake3()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint(paths: Iterable[Path], **settings: str | int | bool) -> str:
    """Hash of the files' contents, in order, and of settings. Names and places of files do not count.

    Returns:
        32 hex digits. Two runs with the same one draw the same prompt for the same ordinal and seed.
    """
    described = json.dumps([[file_digest(path) for path in paths], settings], sort_keys=True)
    return blake3(described.encode()).hexdigest(length=16)
