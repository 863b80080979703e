"""The weights that the soak's inference servers have: one file, written by the trainer, read by the producers."""

import secrets
from pathlib import Path

from buffer.versions import pack, unpack


def publish(head: Path, branch: int, number: int) -> None:
    """Head is (branch, number) now, unless a newer branch owns it."""
    if branch >= owner_of(head):
        draft = head.with_name(f"head-{secrets.token_hex(8)}")
        draft.write_text(str(pack(branch, number)))
        draft.replace(head)


def version_of(head: Path) -> int:
    """The packed version that the servers have; 0.0 before the first."""
    return int(head.read_text()) if head.exists() else 0


def owner_of(head: Path) -> int:
    """The newest branch that the servers have seen: it outlives what the buffer's server forgets."""
    return unpack(version_of(head))[0]
