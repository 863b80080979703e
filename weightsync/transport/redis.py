"""Parts in Redis: chunks of 256 KiB, pipelined a few megabytes at a time, with an index per upload for deletion.

256 KiB: one large value is page-fault bound in the server and fragments its memory; much smaller ones cost a command
each. A pipeline holds at most four megabytes, so neither side buffers a whole part.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from weightsync.errors import CorruptDelta, PartMissing, TransportLost
from weightsync.log.redis_client import answers, connect
from weightsync.transport.base import Deadline, chunks, run_prefix, split_key

CHUNK_BYTES = 256 << 10
_CHUNKS_A_PIPELINE = 16
_KEYS_A_DELETE = 512


class RedisTransport:
    """Transport over Redis. Thread-safe."""

    parts_outlive_writer = True
    parallel_gets = 2

    def __init__(self, url: str, run: str) -> None:
        self._run = run_prefix(run)
        client: redis.Redis = connect(url)
        # Any: redis-py's types are unions of its blocking and its asyncio answers.
        self._client: Any = client

    def announce(self, branch: int, rank: int) -> None:
        """Parts do not stay with their writer."""

    def put_part(self, key: str, parts: Sequence[memoryview], *, deadline_s: float) -> None:
        deadline = Deadline(deadline_s, f"put of part {key}")
        upload, name = split_key(key)
        num_bytes = sum(part.nbytes for part in parts)
        with answers(f"put of part {key}", TransportLost):
            pipe = self._client.pipeline(transaction=False)
            # The index goes first: whatever a crash leaves behind can be found and deleted.
            pipe.sadd(self._uploads_key(), upload)
            pipe.hset(_index_key(upload), name, num_bytes)
            for i, chunk in enumerate(chunks(parts, CHUNK_BYTES)):
                pipe.set(f"{key}:{i}", chunk)
                if (i + 1) % _CHUNKS_A_PIPELINE == 0:
                    deadline.check()
                    pipe.execute()
            deadline.check()
            pipe.execute()

    def get_part_into(self, key: str, target: memoryview, *, deadline_s: float) -> int:
        deadline = Deadline(deadline_s, f"get of part {key}")
        view = target.cast("B")
        at = 0
        for names in _groups(_chunk_keys(key, len(view)), _CHUNKS_A_PIPELINE):
            deadline.check()
            with answers(f"get of part {key}", TransportLost):
                pieces = self._client.mget(names)
            for name, piece in zip(names, pieces, strict=True):
                if piece is None:
                    raise PartMissing(f"{name} is not in Redis: the part was pruned, or Redis lost its tail.")
                expected = min(CHUNK_BYTES, len(view) - at)
                if len(piece) != expected:
                    raise CorruptDelta(
                        f"part {key}: a chunk of {len(piece)} bytes at {at}, the record says {expected}."
                    )
                view[at : at + expected] = piece
                at += expected
        return at

    def delete(self, prefix: str) -> int:
        count = 0
        for upload in self._uploads():
            if not (upload.startswith(prefix) or prefix.startswith(upload)):
                continue
            with answers(f"delete of {upload}", TransportLost):
                index: dict[bytes, bytes] = self._client.hgetall(_index_key(upload))
            gone = {name: int(size) for name, size in index.items() if f"{upload}{name.decode()}".startswith(prefix)}
            keys = [c for name, size in gone.items() for c in _chunk_keys(f"{upload}{name.decode()}", size)]
            with answers(f"delete of {upload}", TransportLost):
                for some in _groups(keys, _KEYS_A_DELETE):
                    self._client.unlink(*some)
                # The index goes last: a delete that is cut short is found and finished by the next.
                if len(gone) == len(index):
                    self._client.unlink(_index_key(upload))
                    self._client.srem(self._uploads_key(), upload)
                else:
                    self._client.hdel(_index_key(upload), *gone)
            count += len(gone)
        return count

    def uploads(self, prefix: str) -> list[str]:
        return [upload for upload in self._uploads() if upload.startswith(prefix)]

    def close(self) -> None:
        self._client.close()

    def _uploads(self) -> list[str]:
        with answers("a read of the uploads", TransportLost):
            return sorted(upload.decode() for upload in self._client.smembers(self._uploads_key()))

    def _uploads_key(self) -> str:
        return f"{self._run}uploads"


def _index_key(upload: str) -> str:
    return f"{upload}parts"


def _chunk_keys(key: str, num_bytes: int) -> list[str]:
    return [f"{key}:{i}" for i in range(max(1, -(-num_bytes // CHUNK_BYTES)))]


def _groups(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
