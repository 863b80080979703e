"""Huffman codes of bytes in zstd's form: lengths, codes, and the description that goes before them (RFC 8878, 4.2.1).

Kernels for `huffman`; each is called once a block.
"""

from typing import Any

import numpy as np

from weightsync.vector import jit

LONGEST = 11
"""Bits of the longest code that the format allows."""

_LOG = 6  # of the table that codes the description: the largest that readers accept
_TABLE = 1 << _LOG
_MOST_DIRECT = 128

# The text of the kernels: numba's types are not Python's, hence Any.


@jit
def code_lengths(counts: Any, lengths: Any) -> Any:
    """Fill [256] bits of each byte's code, 0 for one that does not occur; how many occur.

    Where a code would be too long, counts are halved until it is not, so that rare bytes come closer together.
    """
    symbols, n = np.empty(256, np.int64), 0
    for i in range(256):  # loops, here and below: numba takes seconds to compile what numpy says shortly
        lengths[i] = 0
        if counts[i] > 0:
            at = n
            while at > 0 and counts[symbols[at - 1]] > counts[i]:
                symbols[at] = symbols[at - 1]
                at -= 1
            symbols[at] = i
            n += 1
    if n < 2:
        return n
    weight, parent, depth = np.empty(511, np.int64), np.empty(511, np.int64), np.empty(511, np.int64)
    halved = 0
    while True:
        for i in range(n):  # halving keeps the order
            weight[i] = max(1, counts[symbols[i]] >> halved)
        # Leaves rise, and so do the nodes that are made of them: the two smallest are at the front of either.
        leaf, node = 0, n
        for made in range(n, 2 * n - 1):
            weight[made] = 0
            for _ in range(2):
                if leaf < n and (node >= made or weight[leaf] <= weight[node]):
                    taken = leaf
                    leaf += 1
                else:
                    taken = node
                    node += 1
                weight[made] += weight[taken]
                parent[taken] = made
        depth[2 * n - 2] = 0
        longest = 0
        for i in range(2 * n - 3, -1, -1):
            depth[i] = depth[parent[i]] + 1
            longest = max(longest, depth[i])
        if longest <= LONGEST:
            break
        halved += 1
    for i in range(n):
        lengths[symbols[i]] = depth[i]
    return n


@jit
def cost_bits(counts: Any, lengths: Any) -> Any:
    """Bits that a block takes with these codes; -1 if a byte has none."""
    bits = 0
    for i in range(256):
        if counts[i] > 0:
            if lengths[i] == 0:
                return -1
            bits += counts[i] * lengths[i]
    return bits


@jit
def codes(lengths: Any, table: Any) -> None:
    """Fill [256] codes, each with its length above bit 16: the longest come first, equal ones by their byte."""
    at = np.zeros(LONGEST + 2, np.int64)
    for i in range(256):
        at[lengths[i]] += 1
    first = 0
    for length in range(LONGEST, 0, -1):
        here = at[length]
        at[length] = first
        first = (first + here) >> 1
    for i in range(256):
        length = lengths[i]
        table[i] = 0
        if length > 0:
            table[i] = np.uint32(at[length] | np.int64(length) << 16)
            at[length] += 1


@jit
def describe(lengths: Any, out: Any) -> Any:
    """Write the description of a code; its bytes, 0 if it has none.

    A code is told by weights, longest length + 1 - length, of all bytes but the last that occurs: as nibbles, or
    coded by their own frequencies.
    """
    longest: Any = 0
    last = 0
    for i in range(256):
        if lengths[i] > 0:
            longest, last = max(longest, np.int64(lengths[i])), i
    weights = np.zeros(256, np.int64)
    for i in range(last):
        if lengths[i] > 0:
            weights[i] = longest + 1 - lengths[i]
    coded = _code_weights(weights, last, out)
    direct = 1 + ((last + 1) >> 1)
    if last > _MOST_DIRECT or 0 < coded <= direct:
        return coded
    out[0] = 127 + last
    for i in range(0, last, 2):
        out[1 + (i >> 1)] = weights[i] << 4 | weights[i + 1]  # past the last they are 0
    return direct


@jit
def _code_weights(weights: Any, number: Any, out: Any) -> Any:
    """Weights as two interleaved states of a finite-state entropy coder; bytes with the header, 0 if not possible."""
    shares = _shares(weights, number)
    if number < 3 or shares[weights[0]] == _TABLE:
        return 0
    at = _write_shares(shares, out)
    states, bits_of, find = _coder(shares)
    # States of weights with even and odd places, from the last weight to the first.
    state = np.zeros(2, np.int64)
    held, count = 0, 0
    for i in range(number - 1, -1, -1):
        which, w = i & 1, weights[i]
        if i >= number - 2:  # each state begins with a weight, and sends nothing
            width = (bits_of[w] + (1 << 15)) >> 16
            value = (width << 16) - bits_of[w]
        else:
            value = state[which]
            width = (value + bits_of[w]) >> 16
            held |= (value & ((1 << width) - 1)) << count
            count += width
        state[which] = states[(value >> width) + find[w]]
        while count >= 8:
            out[at] = held & 255
            at, held, count = at + 1, held >> 8, count - 8
    held |= (state[1] & (_TABLE - 1)) << count
    held |= (state[0] & (_TABLE - 1)) << (count + _LOG)
    held |= 1 << (count + 2 * _LOG)
    count += 2 * _LOG + 1
    while count > 0:
        out[at] = held & 255
        at, held, count = at + 1, held >> 8, count - 8
    if at - 1 >= _MOST_DIRECT:
        return 0
    out[0] = at - 1
    return at


@jit
def _shares(weights: Any, number: Any) -> Any:
    """[LONGEST + 1] shares of the table, at least 1 for each weight that occurs."""
    seen, shares = np.zeros(LONGEST + 1, np.int64), np.zeros(LONGEST + 1, np.int64)
    for i in range(number):
        seen[weights[i]] += 1
    left, most = _TABLE, 0
    for w in range(LONGEST + 1):
        if seen[w] > 0:
            shares[w] = max(1, seen[w] * _TABLE // number)
        left -= shares[w]
        most = w if shares[w] > shares[most] else most
    shares[most] += left
    return shares


@jit
def _write_shares(shares: Any, out: Any) -> Any:
    """The table's own description (RFC 8878, 4.1.1), after the header; where it ends."""
    remaining, threshold, width = _TABLE + 1, _TABLE, _LOG + 1
    held, count, at, w = _LOG - 5, 4, 1, 0
    none_before = False
    while remaining > 1:
        if none_before:
            start = w
            while shares[w] == 0:
                w += 1
            while w >= start + 3:
                start += 3
                held |= 3 << count
                count += 2
            held |= (w - start) << count
            count += 2
        most = 2 * threshold - 1 - remaining
        value = shares[w] + 1
        remaining -= shares[w]
        none_before = shares[w] == 0
        w += 1
        if value >= threshold:
            value += most
        held |= value << count
        count += width - (1 if value < most else 0)
        while remaining < threshold:
            width, threshold = width - 1, threshold >> 1
        while count >= 8:
            out[at] = held & 255
            at, held, count = at + 1, held >> 8, count - 8
    if count > 0:
        out[at] = held & 255
        at += 1
    return at


@jit
def _coder(shares: Any) -> Any:
    """(next states, bits to send in 16.16, where a weight's states begin) of the coder with these shares."""
    at, spread, place = np.zeros(LONGEST + 2, np.int64), np.empty(_TABLE, np.int64), 0
    for w in range(LONGEST + 1):
        at[w + 1] = at[w] + shares[w]
        for _ in range(shares[w]):
            spread[place] = w
            place = (place + (_TABLE >> 1) + (_TABLE >> 3) + 3) & (_TABLE - 1)
    bits_of, find = np.zeros(LONGEST + 1, np.int64), np.zeros(LONGEST + 1, np.int64)
    for w in range(LONGEST + 1):
        if shares[w] == 1:
            bits_of[w], find[w] = (_LOG << 16) - _TABLE, at[w] - 1
        elif shares[w] > 1:
            width = _LOG
            while (shares[w] - 1) >> (_LOG - width + 1) > 0:
                width -= 1
            bits_of[w], find[w] = (width << 16) - (shares[w] << width), at[w] - shares[w]
    states = np.empty(_TABLE, np.int64)
    for i in range(_TABLE):
        w = spread[i]
        states[at[w]] = _TABLE + i
        at[w] += 1
    return states, bits_of, find
