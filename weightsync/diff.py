"""The diff kernels in numba, where it is installed: one fused pass over a bucket. The only door to numba.

`planes` and `digest` call these or, without numba, `diff_numpy`; a test holds the two to the same bits. Every kernel
releases the GIL and is cached on disk; set NUMBA_CACHE_DIR where the package's folder is read-only. No I/O, no clock.

The fused pass compares 64 words at a time into a 64-bit mask, walks its set bits, and writes gap bytes, value codes and
digest terms of a block while it is in the first cache; meanwhile it asks for the memory of the next block. Adding asks
for the words of some hundred changes before it reads the first of them. numpy takes 10-20 times as long.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from weightsync.diff_numpy import ESCAPE, SKIP

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    HAVE_NUMBA = True
except ImportError:
    HAVE_NUMBA = False

BLOCK_WORDS = 2048
"""Words compared before their planes are written: a block, its positions and the next block fit the first cache."""

_AHEAD = 512
"""Changes whose words are asked for before the first of them is read."""

_LINE_BYTES = 64

SLACK = BLOCK_WORDS + 72
"""Room that `encode` wants past the words that changed: a whole block, and the unrolled walk's overshoot."""


# Any: numba ships no types, and what the decorators return is not called as Python.
def _jit(function: Callable[..., Any]) -> Any:
    return numba.njit(nogil=True, cache=True, boundscheck=False)(function) if HAVE_NUMBA else function


def _inlined(function: Callable[..., Any]) -> Any:
    return numba.njit(nogil=True, cache=True, inline="always")(function) if HAVE_NUMBA else function


def _llvm(function: Callable[..., Any]) -> Any:
    return intrinsic(function) if HAVE_NUMBA else function


# Below this line is the text of the kernels. numba's types are not Python's, hence Any in the intrinsics.


@_llvm
def _differs64(typing_context: Any, a: Any, at_a: Any, b: Any, at_b: Any) -> Any:
    """u64 whose bit j says a[at + j] != b[at + j]: one vector compare instead of 64 branches."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = signature.args[0].dtype.bitwidth
        vector = ir.VectorType(ir.IntType(bits), 64)
        loaded = []
        for array_type, array, index in (
            (signature.args[0], arguments[0], arguments[1]),
            (signature.args[2], arguments[2], arguments[3]),
        ):
            pointer = builder.gep(context.make_array(array_type)(context, builder, value=array).data, [index])
            value = builder.load(builder.bitcast(pointer, vector.as_pointer()))
            value.align = bits // 8
            loaded.append(value)
        return builder.bitcast(builder.icmp_unsigned("!=", *loaded), ir.IntType(64))

    return types.uint64(a, types.int64, b, types.int64), codegen


@_llvm
def _lowest_bit(typing_context: Any, mask: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Zero is defined (64): the unrolled walk below asks for bits that may not be there.
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@_llvm
def _num_bits(typing_context: Any, mask: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


@_llvm
def _prefetch(typing_context: Any, array: Any, at: Any, end: Any) -> Any:
    """Ask for the cache line of array[at] if at < end; nothing waits for it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        with builder.if_then(builder.icmp_signed("<", arguments[1], arguments[2])):
            data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
            line = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
            i32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [line.type, i32, i32, i32])
            call = builder.module.declare_intrinsic("llvm.prefetch", [line.type], kind)
            builder.call(call, [line, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@_inlined
def _mix64(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@_inlined
def _term(address: Any, word: Any, step: Any) -> Any:
    base = np.uint64(address) << np.uint64(16)
    if step == 2:
        high = _mix64(base + np.uint64(0x10000) + (np.uint64(word) >> np.uint64(16)))
        return _mix64(base + (np.uint64(word) & np.uint64(0xFFFF))) + high
    return _mix64(base + np.uint64(word))


@_jit
def digest_words(words: Any, start: Any, step: Any) -> Any:
    """Sum of the digest terms of a contiguous run."""
    total = np.uint64(0)
    for i in range(words.shape[0]):
        total += _term(start + i * step, words[i], step)
    return total


@_jit
def digest_at(addresses: Any, words: Any, step: Any) -> Any:
    """Sum of the digest terms of words at addresses."""
    total = np.uint64(0)
    for i in range(words.shape[0]):
        total += _term(addresses[i], words[i], step)
    return total


@_jit
def _changed_positions(old: Any, new: Any, lo: Any, hi: Any, found: Any) -> Any:
    count = 0
    full = lo + ((hi - lo) & ~63)
    for i in range(lo, full, 64):
        mask = _differs64(new, i, old, i)
        here = _num_bits(mask)
        # Up to eight are written without a branch per bit; what lies past `here` is overwritten by the next step.
        for j in range(4):
            found[count + j] = i + _lowest_bit(mask)
            mask &= mask - np.uint64(1)
        if here > 4:
            for j in range(4, 8):
                found[count + j] = i + _lowest_bit(mask)
                mask &= mask - np.uint64(1)
            at = count + 8
            while mask:
                found[at] = i + _lowest_bit(mask)
                mask &= mask - np.uint64(1)
                at += 1
        count += here
    for i in range(full, hi):
        if new[i] != old[i]:
            found[count] = i
            count += 1
    return count


@_jit
def encode(old: Any, new: Any, gaps: Any, codes: Any, escaped: Any, ends: Any, bases: Any, step: Any) -> Any:
    """(gap bytes or -1 when a buffer is too small, changed, escapes, digest's gain)."""
    n = new.shape[0]
    half = np.int64(1) << np.int64(8 * new.itemsize - 1)
    wrap = half << np.int64(1)
    line = _LINE_BYTES // new.itemsize
    found = np.empty(SLACK, np.int64)
    num_gaps = changed = num_escaped = cursor = segment = 0
    gain = np.uint64(0)
    for lo in range(0, n, BLOCK_WORDS):
        hi = min(n, lo + BLOCK_WORDS)
        k = _changed_positions(old, new, lo, hi, found)
        room = num_gaps + k + (hi - cursor) // SKIP + 2 <= gaps.shape[0]
        if not room or changed + k > codes.shape[0] or num_escaped + k > escaped.shape[0]:
            return -1, changed, num_escaped, gain
        ahead, end = hi, min(n, hi + BLOCK_WORDS)
        for j in range(k):
            _prefetch(old, ahead, end)
            _prefetch(new, ahead, end)
            ahead += line
            position = found[j]
            gap = position - cursor
            cursor = position + 1
            while gap >= SKIP:
                gaps[num_gaps] = SKIP
                num_gaps += 1
                gap -= SKIP
            gaps[num_gaps] = gap
            num_gaps += 1
            difference = (np.int64(new[position]) - np.int64(old[position])) & (wrap - 1)
            signed = difference - wrap if difference >= half else difference
            code: Any = ((signed << np.int64(1)) ^ (signed >> np.int64(63))) - 1
            if code >= ESCAPE:
                escaped[num_escaped] = difference
                num_escaped += 1
                code = ESCAPE
            codes[changed + j] = code
        changed += k
        # A loop of its own, so that the one above stays free of the long chain of multiplications.
        for j in range(k):
            _prefetch(old, ahead, end)
            _prefetch(new, ahead, end)
            ahead += line
            position = found[j]
            while position >= ends[segment]:
                segment += 1
            address = bases[segment] + position * step
            gain += _term(address, new[position], step) - _term(address, old[position], step)
        while ahead < end:
            _prefetch(old, ahead, end)
            _prefetch(new, ahead, end)
            ahead += line
    return num_gaps, changed, num_escaped, gain


@_jit
def pack(codes: Any, values: Any) -> None:
    """Two codes a byte, low nibble first."""
    n = codes.shape[0]
    for i in range(n >> 1):
        values[i] = codes[2 * i] | np.uint8(codes[2 * i + 1] << np.uint8(4))
    if n & 1:
        values[n >> 1] = codes[n - 1]


@_inlined
def _difference(values: Any, escaped: Any, k: Any, x: Any) -> Any:
    """(difference, escapes used) of the k-th changed word."""
    code = np.int64((values[k >> 1] >> np.uint8((k & 1) << 2)) & np.uint8(15))
    if code < ESCAPE:
        z = code + 1
        return (z >> 1) ^ -(z & 1), x
    return np.int64(escaped[x]), x + 1


@_jit
def decode(gaps: Any, values: Any, escaped: Any, positions: Any, differences: Any) -> None:
    """Positions and differences of checked planes."""
    cursor: Any = 0
    k = x = 0
    for i in range(gaps.shape[0]):
        gap = np.int64(gaps[i])
        cursor += gap
        if gap == SKIP:
            continue
        difference, x = _difference(values, escaped, k, x)
        positions[k] = cursor
        differences[k] = difference
        cursor += 1
        k += 1


@_jit
def apply(target: Any, gaps: Any, values: Any, escaped: Any, ends: Any, bases: Any, step: Any) -> Any:
    """In-place add. The planes must have passed the checks: there is no bounds check here."""
    positions, differences = np.empty(_AHEAD, np.int64), np.empty(_AHEAD, np.int64)
    cursor: Any = 0
    i = k = x = segment = 0
    with_digest = ends.shape[0] > 0
    gain = np.uint64(0)
    while i < gaps.shape[0]:
        count = 0
        while count < _AHEAD and i < gaps.shape[0]:
            gap = np.int64(gaps[i])
            i += 1
            cursor += gap
            if gap == SKIP:
                continue
            _prefetch(target, cursor, target.shape[0])
            positions[count] = cursor
            differences[count], x = _difference(values, escaped, k, x)
            cursor += 1
            count += 1
            k += 1
        for j in range(count):
            position = positions[j]
            before = target[position]
            target[position] = np.int64(before) + differences[j]
            if with_digest:
                while position >= ends[segment]:
                    segment += 1
                address = bases[segment] + position * step
                gain += _term(address, target[position], step) - _term(address, before, step)
    return gain
