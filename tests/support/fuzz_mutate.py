"""Damage for decoders: a valid input is taken apart, changed where it hurts, put together again, and its bytes bent."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

Tree = Any  # nested lists, maps and scalars: what a decoder is given, before it is bytes

_DEEP = 200

SCALARS: tuple[Tree, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**53, 2**62, 2**63 - 1, 2**64 - 1, -(2**31), -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *("", "a", "1", "stop", "abort", "unfinished", "parked", "uint8", "uint32", "float32", "bool", "object", "<u4"),
    *(
        "\x00",
        "\udc80",
        "../../x",
        "\U0001f600" * 3,
        "a" * 300,
        b"",
        b"\x01",
        b"stop",
        b"\x01\x02\x03\x04",
        b"\xff" * 40,
    ),
)
"""What decoders stumble over: ends of ranges, numbers that are none, names of types, text that has no UTF-8 form."""

_OPCODES = bytes([*range(0x80, 0x84), *range(0x90, 0x94), 0xA0, *range(0xC0, 0xE0), 0xFF])


def pack(tree: Tree) -> bytes:
    """Any tree as msgpack, also what has no place in a payload: lone surrogates, extension types, timestamps."""
    return bytes(msgpack.packb(tree, unicode_errors="surrogatepass"))


def value(draw: random.Random) -> Tree:
    """A value from nowhere."""
    kind = draw.randrange(10)
    if kind < 5:
        return draw.choice(SCALARS)
    if kind == 5:
        return draw.getrandbits(draw.randrange(1, 65))
    if kind == 6:
        return msgpack.ExtType(draw.randrange(128), draw.randbytes(4)) if draw.random() < 0.5 else msgpack.Timestamp(7)
    if kind == 7:
        return [value(draw) for _ in range(draw.randrange(4))]
    if kind == 8:
        return {str(draw.choice(SCALARS)): value(draw) for _ in range(draw.randrange(3))}
    deep: Tree = draw.choice(SCALARS)
    for _ in range(draw.choice((3, 31, 33, _DEEP))):
        deep = [deep] if draw.random() < 0.7 else {"a": deep}
    return deep


def place(tree: Tree, draw: random.Random) -> tuple[Tree, Any]:
    """A (container, key) somewhere in `tree`, which is a container that is not empty."""
    node = tree
    while True:
        key = draw.randrange(len(node)) if isinstance(node, list) else draw.choice(list(node))
        child = node[key]
        if not isinstance(child, list | dict) or not child or draw.random() < 0.2:
            return node, key
        node = child


def bend(tree: Tree, draw: random.Random) -> Tree:
    """`tree` with one to three changes, in place where it is a container."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not isinstance(tree, list | dict) or not tree or draw.random() < 0.01:
            return value(draw)
        node, key = place(tree, draw)
        draw.choice(_CHANGES)(node, key, tree, draw)
    return tree


def _replace(node: Tree, key: Any, tree: Tree, draw: random.Random) -> None:
    node[key] = value(draw)


def _nudge(node: Tree, key: Any, tree: Tree, draw: random.Random) -> None:
    old = node[key]
    if type(old) is int:
        new = draw.choice((old + 1, old - 1, -old, old * 2, old // 2, old << 8, old ^ 1 << draw.randrange(63)))
        node[key] = min(max(new, -(2**63)), 2**64 - 1)
    elif type(old) is float:
        node[key] = draw.choice((-old, old * 1e300, float("nan"), int(old) if abs(old) < 1e9 else 0))
    elif isinstance(old, bytes | str) and old:
        at = draw.randrange(len(old))
        node[key] = draw.choice((old[:at], old[at:], old * 2, old[::2]))
    else:
        node[key] = value(draw)


def _drop(node: Tree, key: Any, tree: Tree, draw: random.Random) -> None:
    del node[key]


def _copy_here(node: Tree, key: Any, tree: Tree, draw: random.Random) -> None:
    other, at = place(tree, draw)
    # By its bytes: the same object twice in a tree could contain itself.
    node[key] = msgpack.unpackb(pack(other[at]), strict_map_key=False, unicode_errors="surrogatepass")


def _add(node: Tree, key: Any, tree: Tree, draw: random.Random) -> None:
    if isinstance(node, dict):
        node[draw.choice(("", "x", "None", "data", 1, b"x"))] = value(draw)
    else:
        node.insert(draw.randrange(len(node) + 1), value(draw))


def _rename(node: Tree, key: Any, tree: Tree, draw: random.Random) -> None:
    if isinstance(node, dict):
        node[draw.choice(("x", "extra", "rows", "", "\udc80", 3, b"rows"))] = node.pop(key)


_CHANGES: tuple[Callable[[Tree, Any, Tree, random.Random], None], ...] = (
    *(_replace, _replace, _nudge, _nudge, _nudge),
    *(_drop, _copy_here, _add, _rename),
)


def bend_bytes(blob: bytes, draw: random.Random, others: Sequence[bytes]) -> bytes:
    """`blob` with one to four changes of its bytes: flips, cuts, repeats, splices, other length fields, opcodes."""
    damaged = bytearray(blob)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, kind = draw.randrange(len(damaged) + 1), draw.randrange(9)
        length = draw.choice((1, 2, 4, 8, draw.randrange(64)))
        if kind == 0:
            damaged = damaged[:at]
        elif kind == 1:
            del damaged[at : at + length]
        elif kind == 2:
            damaged[at:at] = damaged[at : at + length]
        elif kind == 3:
            damaged[at : at + length] = draw.choice((b"\xff", b"\x00", b"\x7f", b"\x80")) * length
        elif kind == 4:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            damaged[at : at + length] = other[start : start + draw.choice((length, 400))]
        elif kind == 5:
            damaged[at : at + 1] = bytes([draw.choice(_OPCODES)])
        elif kind == 6:
            damaged[at:at] = bytes([draw.choice(_OPCODES)]) + draw.randbytes(draw.randrange(6))
        else:
            for _ in range(draw.choice((1, 1, 3))):
                if damaged:
                    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)
