"""What a decode step does besides matrix products, in numba, where it is installed: a kernel for many calls of torch.

`fused` and `rows` call these; without numba `forward` and `sampling` do the same with torch. No I/O, no clock, no
state. What a kernel calls stands in this file: numba's cache on disk looks at no other.

A row's numbers come from its own numbers alone, in an order that its own length and nothing else decides: no kernel
can see batch mates. Sums run in several chains, so that the processor need not wait for one addition to begin the next;
loops run over memory as it lies, so that LLVM makes vectors of them without being allowed to reorder a sum.
"""

from typing import Any

import numpy as np

from weightsync.vector import HAVE_NUMBA, inlined, jit

__all__ = ["HAVE_NUMBA", "UNROLL", "add_norm", "attend", "draw", "gate"]

UNROLL = 8
"""Numbers of a head, and positions of an answer, that are taken together."""

_LINE = 16
"""float32 numbers in a cache line: positions are scored in whole ones, as blocks hold a multiple of them."""

_SUMMED = 64
"""Weights of a vocabulary that are summed together before the draw looks among them."""

# exp(x) = 2^n * exp(r): n is rounded by adding and taking away 1.5 * 2^23, which leaves it in the low bits meanwhile.
_LEAST, _MOST = np.float32(-87.0), np.float32(88.0)
_LOG2E, _ROUND = np.float32(1.4426950408889634), np.float32(12582912.0)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


# The text of the kernels: numba's types are not Python's, hence Any.


@inlined
def _exp(x: Any) -> Any:
    """exp of a float32 to 2e-7 of itself; 0 below -87, NaN of NaN. Source: Cephes, expf."""
    held = _LEAST if x < _LEAST else x
    held = _MOST if held > _MOST else held
    shifted = held * _LOG2E + _ROUND
    n = shifted - _ROUND
    r = (held - n * _LN2_HIGH) - n * _LN2_LOW
    y = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    power = np.int32((np.float32(shifted).view(np.int32) << 23) + 0x3F800000).view(np.float32)
    y = (y * r * r + r + _ONE) * power
    return _ZERO if x < _LEAST else y


@inlined
def _squares(x: Any, first: Any, size: Any) -> Any:
    """Sum of the squares of x[first : first + size], `size` a multiple of UNROLL."""
    a = b = c = d = e = f = g = h = _ZERO
    for i in range(first, first + size, UNROLL):
        a += x[i] * x[i]
        b += x[i + 1] * x[i + 1]
        c += x[i + 2] * x[i + 2]
        d += x[i + 3] * x[i + 3]
        e += x[i + 4] * x[i + 4]
        f += x[i + 5] * x[i + 5]
        g += x[i + 6] * x[i + 6]
        h += x[i + 7] * x[i + 7]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@inlined
def _largest(x: Any, size: Any) -> Any:
    """The largest of x[:size]; what is not a number is passed over."""
    a = b = c = d = np.float32(-np.inf)
    whole = size - size % 4
    for i in range(0, whole, 4):
        a = x[i] if x[i] > a else a
        b = x[i + 1] if x[i + 1] > b else b
        c = x[i + 2] if x[i + 2] > c else c
        d = x[i + 3] if x[i + 3] > d else d
    for i in range(whole, size):
        a = x[i] if x[i] > a else a
    a = b if b > a else a
    c = d if d > c else c
    return c if c > a else a


@inlined
def _sum(x: Any, first: Any, end: Any) -> Any:
    """Sum of x[first:end] in float64."""
    a = b = c = d = 0.0
    whole = end - (end - first) % 4
    for i in range(first, whole, 4):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
    for i in range(whole, end):
        a += x[i]
    return (a + b) + (c + d)


@jit
def add_norm(x: Any, added: Any, scaled_weight: Any, floor: Any, out: Any) -> Any:
    """x += added; out = the root-mean-square norm of x, as `forward.rms_norm` has it.

    Args:
        x, added, out: [N, hidden] float32, hidden a multiple of UNROLL; `added` may have no rows, and nothing is added.
        scaled_weight: [hidden] float32. floor: float32.
    """
    num, size = x.shape
    for row in range(num):
        mine, result = x[row], out[row]
        if added.shape[0]:
            more = added[row]
            for i in range(size):
                mine[i] += more[i]
        factor = _ONE / np.sqrt(_squares(mine, 0, size) + floor * floor)
        for i in range(size):
            result[i] = mine[i] * factor * scaled_weight[i]


@jit
def gate(gate_up: Any, out: Any) -> Any:
    """out [N, size] = silu(gate) * up of gate_up [N, 2 * size], float32."""
    num, size = out.shape
    for row in range(num):
        opening, passed, result = gate_up[row, :size], gate_up[row, size:], out[row]
        for i in range(size):
            result[i] = np.divide(opening[i], _ONE + _exp(-opening[i])) * passed[i]


@inlined
def _turn(head: Any, norm: Any, floor: Any, turn: Any) -> Any:
    """Norm of a head (none if `norm` is empty), and the rotation of its pairs by the (cos, sin) of `turn`."""
    size = head.shape[0]
    if norm.shape[0]:
        factor = _ONE / np.sqrt(_squares(head, 0, size) + floor * floor)
        for i in range(size):
            head[i] = head[i] * factor * norm[i]
    for i in range(0, size, 2):
        a, b = head[i], head[i + 1]
        head[i] = a * turn[i] - b * turn[i + 1]
        head[i + 1] = a * turn[i + 1] + b * turn[i]


@jit
def attend(
    qkv: Any, turns: Any, positions: Any, table: Any, keys: Any, values: Any, q_norm: Any, k_norm: Any, floor: Any,
    scale: Any, score: Any, out: Any,
) -> Any:  # fmt: skip
    """One layer's attention of one new token per row: rotates, writes its key and value, and attends to all before it.

    Args:
        qkv: [N, q_size + 2 * kv_size] float32; queries and keys are rotated in place.
        turns: [max_length, head_dim] float32, (cos, sin) of each pair of neighbours by position.
        positions: [rows] int64, rows <= N; where each row's token stands. table: [>= rows, levels] int64, its blocks.
        keys, values: of the layer, as `KVCache` holds them; head_dim a multiple of UNROLL.
        q_norm, k_norm: [head_dim] float32, or [0]. floor: float32, theirs. scale: float32, of the scores.
        score: [>= levels * width] float32, scratch.
        out: [N, q_size] float32; rows from len(positions) on stay as they are.
    """
    kv_heads, width, size = values.shape[1], values.shape[2], values.shape[3]
    heads = out.shape[1] // size
    groups = heads // kv_heads
    for row in range(positions.shape[0]):
        at, blocks, mine, turn = positions[row], table[row], qkv[row], turns[positions[row]]
        for head in range(heads):
            _turn(mine[head * size : (head + 1) * size], q_norm, floor, turn)
        newest, place = blocks[at // width], at % width
        for head in range(kv_heads):
            first = (heads + head) * size
            _turn(mine[first : first + size], k_norm, floor, turn)
            kept = values[newest, head, place]
            for i in range(size):
                keys[newest, head * size + i, place] = mine[first + i]
                kept[i] = mine[first + kv_heads * size + i]
        for head in range(heads):
            query, result = mine[head * size : (head + 1) * size], out[row, head * size : (head + 1) * size]
            for level in range(at // width + 1):
                # Past the newest position these are scores of whatever the block holds there; nobody looks at them.
                count = min(width, (at + _LINE - level * width) // _LINE * _LINE)
                part = score[level * width : level * width + count]
                _score(part, query, keys[blocks[level]], head // groups * size, count, scale)
            total = _weigh(score, at + 1)
            for i in range(size):
                result[i] = _ZERO
            for level in range(at // width + 1):
                count = min(width, (at + UNROLL - level * width) // UNROLL * UNROLL)
                _mix(result, score[level * width : level * width + count], values[blocks[level], head // groups], count)
            share = np.divide(_ONE, total)
            for i in range(size):
                result[i] *= share


@inlined
def _score(part: Any, query: Any, key: Any, first: Any, count: Any, scale: Any) -> Any:
    """part[t] = scale * the sum over d of query[d] * key[first + d, t]."""
    for t in range(count):
        part[t] = _ZERO
    for d in range(0, query.shape[0], UNROLL):
        a, b, c, e = query[d] * scale, query[d + 1] * scale, query[d + 2] * scale, query[d + 3] * scale
        f, g, h, i = query[d + 4] * scale, query[d + 5] * scale, query[d + 6] * scale, query[d + 7] * scale
        k0, k1, k2, k3 = key[first + d], key[first + d + 1], key[first + d + 2], key[first + d + 3]
        k4, k5, k6, k7 = key[first + d + 4], key[first + d + 5], key[first + d + 6], key[first + d + 7]
        for t in range(count):
            near = (a * k0[t] + b * k1[t]) + (c * k2[t] + e * k3[t])
            part[t] += near + ((f * k4[t] + g * k5[t]) + (h * k6[t] + i * k7[t]))


@inlined
def _weigh(score: Any, count: Any) -> Any:
    """score[:count] = exp(score - the largest), zeros up to a multiple of UNROLL behind it; returns their sum."""
    top = _largest(score, count)
    for t in range(count):
        score[t] = _exp(score[t] - top)
    end = (count + UNROLL - 1) // UNROLL * UNROLL
    for t in range(count, end):
        score[t] = _ZERO
    a = b = c = d = _ZERO
    for t in range(0, end, 4):
        a += score[t]
        b += score[t + 1]
        c += score[t + 2]
        d += score[t + 3]
    return (a + b) + (c + d)


@inlined
def _mix(result: Any, weight: Any, value: Any, count: Any) -> Any:
    """result[i] += the sum over t of weight[t] * value[t, i]."""
    for t in range(0, count, UNROLL):
        a, b, c, d = weight[t], weight[t + 1], weight[t + 2], weight[t + 3]
        e, f, g, h = weight[t + 4], weight[t + 5], weight[t + 6], weight[t + 7]
        v0, v1, v2, v3, v4, v5, v6, v7 = (
            value[t], value[t + 1], value[t + 2], value[t + 3], value[t + 4], value[t + 5], value[t + 6], value[t + 7]
        )  # fmt: skip
        for i in range(result.shape[0]):
            near = (a * v0[i] + b * v1[i]) + (c * v2[i] + d * v3[i])
            result[i] += near + ((e * v4[i] + f * v5[i]) + (g * v6[i] + h * v7[i]))


@jit
def draw(logits: Any, inverse_temperature: Any, greedy: Any, uniform: Any, tokens: Any, logprobs: Any) -> Any:
    """A token per row and its logprob, as `sampling.sample` without filters.

    Args:
        logits: [>= N, vocab] float32; overwritten.
        inverse_temperature, uniform: [N] float32. greedy: [N] bool. tokens: [N] int64, logprobs: [N] float32: results.
    """
    vocab = logits.shape[1]
    sums = np.empty((vocab + _SUMMED - 1) // _SUMMED, np.float64)
    for row in range(tokens.shape[0]):
        weight, inverse = logits[row], inverse_temperature[row]
        for i in range(vocab):
            weight[i] *= inverse
        top = _largest(weight, vocab)
        best = 0
        if greedy[row]:
            while best < vocab - 1 and weight[best] != top:
                best += 1
        for i in range(vocab):
            weight[i] = _exp(weight[i] - top)
        total = 0.0
        for block in range(sums.shape[0]):
            sums[block] = _sum(weight, block * _SUMMED, min(vocab, (block + 1) * _SUMMED))
            total += sums[block]
        token = best if greedy[row] else _chosen(weight, sums, uniform[row] * total)
        tokens[row] = token
        logprobs[row] = np.log(weight[token] / total)


@inlined
def _chosen(weight: Any, sums: Any, target: Any) -> Any:
    """The first token whose running sum passes `target`; some token if there are NaNs."""
    block, before = 0, 0.0
    while block < sums.shape[0] - 1 and before + sums[block] <= target:
        before += sums[block]
        block += 1
    end = min(weight.shape[0], (block + 1) * _SUMMED)
    chosen = end - 1
    for token in range(block * _SUMMED, end):
        before += weight[token]
        # A sum in this order may end a rounding below the block's: then it is the last token that has any weight.
        if weight[token] > _ZERO:
            chosen = token
            if before > target:
                break
    return chosen
