"""What the log holds: a record per version, anchor and merged deltas beside it, and their bytes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import msgpack

from weightsync.errors import ChainBroken
from weightsync.versions import label, unpack

_SCHEMA = 1


@dataclass(frozen=True)
class Part:
    """One frame in the transport."""

    rank: int
    bucket: int
    num_bytes: int


@dataclass(frozen=True)
class Upload:
    """Parts that were put under one nonce: a delta's (base < version) or an anchor's (base = version)."""

    version: int
    base: int
    nonce: str
    plan: str
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True)
class MergedDelta:
    """The changes of consecutive versions folded into one upload: from `upload.base` to `upload.version`.

    Attributes:
        unchanged: buckets of the upload's plan without a part: their words are the same at both ends.
        num_changed: words that differ between the two ends.
    """

    upload: Upload
    unchanged: tuple[int, ...] = ()
    num_changed: int = 0

    @property
    def base(self) -> int:
        return self.upload.base

    @property
    def version(self) -> int:
        return self.upload.version

    def to_bytes(self) -> bytes:
        packed: bytes = msgpack.packb([_pack_upload(self.upload), list(self.unchanged), self.num_changed])
        return packed

    @classmethod
    def from_bytes(cls, blob: bytes) -> Self:
        """The merged delta of `to_bytes`. Raises ChainBroken."""
        try:
            upload, unchanged, num_changed = msgpack.unpackb(blob)
            return cls(_unpack_upload(upload), tuple(unchanged), num_changed)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise _foreign(error) from error


@dataclass(frozen=True)
class VersionRecord:
    """A version that head named once.

    Attributes:
        version: packed; its branch is the publisher's.
        base: the version before it in the log, None for the first.
        nonce: of this publish; a repeated flip is recognised by it.
        layout: id of the manifest.
        digest: of the whole model at this version.
        delta: changes from base; None if the version was published whole.
        unchanged: buckets of the delta's plan without a part: not one word of them changed.
        anchor: the whole model at this version, once it is committed.
        model_dir: version 0.0 only: the directory it is, as the trainer's machine names it.
        num_changed, num_words: of the delta (an anchor counts all) and the model.
        merged: deltas over several versions that end at this one, by ascending base, once they are committed.
    """

    version: int
    base: int | None
    nonce: str
    layout: str
    digest: int
    delta: Upload | None = None
    unchanged: tuple[int, ...] = ()
    anchor: Upload | None = None
    model_dir: str | None = None
    num_changed: int = 0
    num_words: int = 0
    merged: tuple[MergedDelta, ...] = ()

    @property
    def branch(self) -> int:
        return unpack(self.version)[0]

    @property
    def whole(self) -> bool:
        """Can a reader start here without a base?"""
        return self.anchor is not None or self.model_dir is not None

    def with_anchor(self, anchor: Upload | None) -> "VersionRecord":
        """The record with the anchor that was committed beside it."""
        return replace(self, anchor=anchor)

    def by(self, merged: MergedDelta) -> "VersionRecord":
        """The record as a reader sees it who comes by a merged delta: a version on that delta's base."""
        return replace(
            self,
            base=merged.base,
            delta=merged.upload,
            unchanged=merged.unchanged,
            num_changed=merged.num_changed,
            anchor=None,
            merged=(),
        )

    def uploads(self) -> Iterable[Upload]:
        """Everything of this version that lies in the transport."""
        found = [upload for upload in (self.delta, self.anchor) if upload is not None]
        return found + [merged.upload for merged in self.merged]

    def to_bytes(self) -> bytes:
        """The record without anchor and merged deltas, which the log keeps beside it."""
        fields = [self.base, self.nonce, self.layout, self.digest, _pack_upload(self.delta), list(self.unchanged)]
        rest = [self.model_dir, self.num_changed, self.num_words]
        packed: bytes = msgpack.packb([_SCHEMA, self.version, *fields, *rest])
        return packed

    @classmethod
    def from_bytes(cls, blob: bytes, anchor: bytes | None = None, merged: Iterable[bytes] = ()) -> Self:
        """The record of `to_bytes`, with the anchor of `pack_anchor` and merged deltas of theirs.

        Raises:
            ChainBroken: the bytes are not a record of this schema.
        """
        try:
            schema, version, base, nonce, layout, digest, delta, unchanged, model_dir, changed, words = msgpack.unpackb(
                blob
            )
            if schema != _SCHEMA:
                raise ChainBroken(
                    f"the log's record has schema {schema}, this build reads {_SCHEMA}. Run the same asyncrl on "
                    "both sides."
                )
            whole = None if anchor is None else _unpack_upload(msgpack.unpackb(anchor))
            changes = None if delta is None else _unpack_upload(delta)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise _foreign(error) from error
        deltas = sorted((MergedDelta.from_bytes(delta) for delta in merged), key=lambda delta: delta.base)
        rest = (model_dir, changed, words, tuple(deltas))
        return cls(version, base, nonce, layout, digest, changes, tuple(unchanged), whole, *rest)


def pack_anchor(anchor: Upload) -> bytes:
    """An anchor's bytes."""
    packed: bytes = msgpack.packb(_pack_upload(anchor))
    return packed


def describe(record: VersionRecord | None) -> str:
    """A version in a message: label and digest."""
    return "none" if record is None else f"{label(record.version)} (digest {record.digest:016x})"


def _foreign(error: Exception) -> ChainBroken:
    return ChainBroken(f"a record of the log cannot be read ({error!r}): it was not written by asyncrl.")


# Any: msgpack has no types; what is unpacked is checked by its use in a try that refuses the record.
def _pack_upload(upload: Upload | None) -> list[Any] | None:
    if upload is None:
        return None
    parts = [number for part in upload.parts for number in (part.rank, part.bucket, part.num_bytes)]
    return [upload.version, upload.base, upload.nonce, upload.plan, parts]


def _unpack_upload(fields: Any) -> Upload:
    version, base, nonce, plan, flat = fields
    parts = tuple(Part(*flat[i : i + 3]) for i in range(0, len(flat), 3))
    return Upload(version, base, nonce, plan, parts)
