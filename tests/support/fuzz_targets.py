"""The decoders that read what others wrote, with valid inputs, a way to damage those, and what must hold after."""

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import msgpack

from buffer import CorruptPayload, Group, Ledger, Row, UnknownSchema
from buffer.books import Card
from buffer.errors import BufferError
from buffer.partials import partials_of
from buffer.redis_replies import card_of
from buffer.wire import decode, deflate, encode
from tests.support import fuzz_seeds as seeds
from tests.support.fuzz_frames import FRAME_TARGETS
from tests.support.fuzz_http import HTTP_TARGETS
from tests.support.fuzz_mutate import Tree, bend, bend_bytes, pack
from tests.support.fuzz_target import Target, damage_json
from tests.support.weights import manifest_of
from weightsync.errors import LayoutMismatch
from weightsync.manifest import Manifest

MAX_BYTES = 1 << 20
"""Largest uncompressed size that the payload decoders are given."""


def _damage_payload(blob: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    if draw.random() < 0.75:
        head: Tree = bend(msgpack.unpackb(blob, strict_map_key=False), draw)
        if draw.random() < 0.5:
            seeds.fit_data(head, draw)
        blob = pack(head) if draw.random() < 0.2 else _in_place(head)
        if isinstance(head, dict) and head and draw.random() < 0.05:  # a key that comes twice
            key = draw.choice(list(head))
            blob = bytes([blob[0] + 1]) + blob[1:] + pack(key) + pack(draw.choice(list(head.values())))
    if draw.random() < 0.3:
        blob = bend_bytes(blob, draw, others)
    if draw.random() < 0.1:
        blob = deflate(blob)
        if draw.random() < 0.7:
            blob = bend_bytes(blob, draw, (blob,))
    return blob


def _in_place(head: Tree) -> bytes:
    """As `encode` lays it out, which is read by another path: the columns at the end, their size at a fixed place."""
    if not isinstance(head, dict) or len(head) > 15:
        return pack(head)
    parts = [bytes([0x80 | len(head)])]
    for key, item in head.items():
        parts.append(pack(key))
        if key == "data_bytes" and type(item) is int and 0 <= item < 1 << 32:
            parts.append(b"\xce" + struct.pack(">I", item))
        elif key == "data" and isinstance(item, bytes):
            parts.append(b"\xc6" + struct.pack(">I", len(item)) + item)
        else:
            parts.append(pack(item))
    return b"".join(parts)


def _decode_payload(blob: bytes) -> Group:
    return decode(blob, max_bytes=MAX_BYTES)


def _same_group_again(group: Group) -> None:
    for row in (row for trajectory in group.trajectories for row in trajectory.rows):
        # The decoder checks the arrays of all rows at once; here each row checks itself as if somebody had made it.
        Row(row.token_ids, row.mask, row.logprobs, row.spans, row.num_prompt_tokens, row.columns)
    raw = encode(group)
    again = decode(raw, max_bytes=64 * MAX_BYTES)
    assert again == group, "the decoded group is not equal to its own bytes decoded"
    assert encode(again) == raw, "equal groups have different bytes"


def _same_partials_again(found: Any) -> None:
    again = partials_of(decode(encode(found.to_group(1, 1, "s")), max_bytes=64 * MAX_BYTES))
    assert again == found, "the parked episodes are not equal to their own bytes decoded"
    assert all(type(one.done) is bool for one in found.episodes)


def _decode_ledger(blob: bytes) -> Ledger:
    return Ledger.from_json(json.loads(blob.decode()))


def _same_ledger_again(ledger: Ledger) -> None:
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger
    numbers = (ledger.branch, ledger.number, ledger.watermark, *ledger.dead, *ledger.below.values())
    assert all(type(number) is int and number >= 0 for number in numbers), "a number of a ledger is below 0"


def _sound_card(card: Card) -> None:
    texts = (card.state, card.token, card.worker, card.key, card.reason, card.error, card.index.xxh3)
    assert all(type(text) is str for text in texts)
    # A worker's words, which the scripts keep unread; the card's own numbers are theirs.
    numbers = [part for one in card.index.ranges for part in one] + [*card.index.tokens, *card.index.sampled]
    assert all(type(number) is int for number in numbers), "a number of an index is none"


def _damage_msgpack(blob: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    if draw.random() < 0.7:
        blob = pack(bend(msgpack.unpackb(blob, unicode_errors="surrogateescape"), draw))
    return bend_bytes(blob, draw, others) if draw.random() < 0.4 else blob


def _same_manifest_again(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


_PAYLOAD = (CorruptPayload, UnknownSchema)

TARGETS: dict[str, Target] = {
    "payload": Target(
        _PAYLOAD, lambda draw: encode(seeds.a_group(draw)), _damage_payload, _decode_payload, _same_group_again
    ),
    "partials": Target(
        _PAYLOAD,
        lambda draw: encode(seeds.parked_group(draw)),
        _damage_payload,
        lambda blob: partials_of(_decode_payload(blob)),
        _same_partials_again,
    ),
    "ledger": Target(
        (ValueError,),
        lambda draw: json.dumps(seeds.a_ledger(draw).to_json()).encode(),
        damage_json,
        _decode_ledger,
        _same_ledger_again,
    ),
    "card": Target((BufferError,), seeds.a_card, _damage_msgpack, card_of, _sound_card),
    **FRAME_TARGETS,
    "manifest": Target(
        (LayoutMismatch,), lambda draw: manifest_of().to_bytes(), _damage_msgpack, Manifest.from_bytes,
        _same_manifest_again, longest_message=1 << 20,
    ),
    **HTTP_TARGETS,
}  # fmt: skip
"""By name: bytes of a group, parked episodes, the ledger of a checkpoint, a card of the ledger, weight frames,
a manifest of a layout; and the JSON that servers and clients send each other."""
