"""The floor: the same bytes through redis-py with one script call a group, no schema, no checks, no retries.

put: one pipeline of SET and one EVALSHA that compares the group's version and lists its id. get: BLMOVE to a list of
what is in flight, GET, views over the reply, then one pipeline of UNLINK and LREM. `OneBlob` keeps a group under one
key, its masks packed before the clock runs: the bytes that the buffer moves. `BlobPerTrajectory` keeps eight, with
masks of one byte a token: what the peers' script for raw Redis does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import redis

from scripts.benches.buffer_cases.load import TRAJECTORIES, Arrays

LIST_IF_FRESH = """if tonumber(ARGV[2]) < tonumber(redis.call('GET', KEYS[2]) or '0') then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[1]) return 1"""

View = tuple[np.ndarray, np.ndarray, np.ndarray]


class RawRedis:
    """What both forms share. A prepared group is a list of (key suffix, parts to join)."""

    def __init__(self, url: str) -> None:
        self._redis: Any = redis.Redis.from_url(url)  # typed sync | async
        self._list_if_fresh = self._redis.script_load(LIST_IF_FRESH)

    def put(self, gid: str, prepared: Sequence[tuple[bytes, ...]]) -> None:
        """Join and send one group."""
        pipe = self._redis.pipeline(transaction=False)
        for index, parts in enumerate(prepared):
            pipe.set(f"t:{gid}:{index}", b"".join(parts))
        pipe.evalsha(self._list_if_fresh, 2, "ready", "floor", gid, 0)
        assert pipe.execute()[-1] == 1

    def get(self, wait_s: float = 1.0) -> tuple[bytes, list[View]] | None:
        """The oldest group, in flight until it is acknowledged; None: none came in time."""
        gid = self._redis.blmove("ready", "inflight", wait_s, "RIGHT", "LEFT")
        if gid is None:
            return None
        return gid, [view for blob in self._redis.mget(self._keys(gid)) for view in self._views(blob)]

    def acknowledge(self, gid: bytes) -> None:
        """Delete a group that was taken."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.unlink(*self._keys(gid))
        pipe.lrem("inflight", 1, gid)
        pipe.execute()

    def _keys(self, gid: bytes) -> list[bytes]:
        raise AssertionError("one of the two forms is used")

    def _views(self, blob: bytes) -> list[View]:
        raise AssertionError("one of the two forms is used")


class OneBlob(RawRedis):
    """A group under one key: lengths, then the columns of each trajectory."""

    @staticmethod
    def prepare(group: Sequence[Arrays]) -> list[tuple[Any, ...]]:
        """The parts to join: views of the arrays, and the masks packed."""
        lengths = np.array([len(tokens) for tokens, _, _ in group], np.int64)
        parts = [part for tokens, logprobs, mask in group for part in (tokens.data, logprobs.data, np.packbits(mask))]
        return [(lengths.data, *parts)]

    def _keys(self, gid: bytes) -> list[bytes]:
        return [b"t:%s:0" % gid]

    def _views(self, blob: bytes) -> list[View]:
        views, at = [], 8 * TRAJECTORIES
        for count in np.frombuffer(blob, np.int64, TRAJECTORIES).tolist():
            packed = (count + 7) // 8
            views.append(
                (
                    np.frombuffer(blob, np.int32, count, at),
                    np.frombuffer(blob, np.float32, count, at + 4 * count),
                    np.frombuffer(blob, np.uint8, packed, at + 8 * count),
                )
            )
            at += 8 * count + packed
        return views


class BlobPerTrajectory(RawRedis):
    """A group under eight keys, each with a head of 16 bytes."""

    @staticmethod
    def prepare(group: Sequence[Arrays]) -> list[tuple[Any, ...]]:
        """The parts to join, per trajectory."""
        return [
            (len(tokens).to_bytes(8, "little") + bytes(8), tokens.data, logprobs.data, mask.data)
            for tokens, logprobs, mask in group
        ]

    def _keys(self, gid: bytes) -> list[bytes]:
        return [b"t:%s:%d" % (gid, index) for index in range(TRAJECTORIES)]

    def _views(self, blob: bytes) -> list[View]:
        count = int.from_bytes(blob[:8], "little")
        return [
            (
                np.frombuffer(blob, np.int32, count, 16),
                np.frombuffer(blob, np.float32, count, 16 + 4 * count),
                np.frombuffer(blob, np.uint8, count, 16 + 8 * count),
            )
        ]
