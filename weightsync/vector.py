"""The door to numba, where it is installed: how kernels are compiled, and the vector instructions that Python lacks.

Every kernel releases the GIL and is cached on disk; set NUMBA_CACHE_DIR where the package's folder is read-only. numba
compiles a cached kernel again when the kernel's own file changed, not when another one did from which it calls: kernels
that share a function stand in one file, and who changes this one empties the cache.
"""

from collections.abc import Callable
from typing import Any

try:
    import numba
    from llvmlite import binding, ir
    from numba import types
    from numba.extending import intrinsic

    HAVE_NUMBA = True
except ImportError:
    HAVE_NUMBA = False

LANES = 32
"""Words that `differs32` compares and `pack32` packs at once."""


def _can_pack() -> bool:
    """Has the processor the instructions of `pack32`, and does numba compile for this processor?"""
    if not HAVE_NUMBA or numba.config.CPU_NAME is not None or numba.config.CPU_FEATURES is not None:
        return False
    features = binding.get_host_cpu_features()
    return all(features.get(name, False) for name in ("avx512bw", "avx512dq", "avx512vl", "avx512vbmi2"))


CAN_PACK = _can_pack()
"""Only then kernels with `pack32` or `pack_places32` may be called: LLVM cannot compile them for other processors."""


# Any: numba ships no types, and what the decorators return is not called as Python.
def jit(function: Callable[..., Any]) -> Any:
    """Compile a kernel that Python calls; without numba it stays as it is, and is not called."""
    return numba.njit(nogil=True, cache=True, boundscheck=False)(function) if HAVE_NUMBA else function


def inlined(function: Callable[..., Any]) -> Any:
    """Compile what kernels call, into each place of a call."""
    return numba.njit(nogil=True, cache=True, inline="always")(function) if HAVE_NUMBA else function


def _llvm(function: Callable[..., Any]) -> Any:
    return intrinsic(function) if HAVE_NUMBA else function


# numba's types are not Python's, hence Any below.


@_llvm
def differs64(typing_context: Any, a: Any, at_a: Any, b: Any, at_b: Any) -> Any:
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
def lowest_bit(typing_context: Any, mask: Any) -> Any:
    """Number of the lowest bit that is set in a u64; 64 if none is."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Zero is defined (64): the unrolled walk below asks for bits that may not be there.
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@_llvm
def num_bits(typing_context: Any, mask: Any) -> Any:
    """How many bits of a u64 are set."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), codegen


@_llvm
def prefetch(typing_context: Any, array: Any, at: Any, end: Any) -> Any:
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


@_llvm
def store64(typing_context: Any, array: Any, at: Any, value: Any) -> Any:
    """Write a u64 to eight bytes of array[at:], wherever they lie; the machine's byte order is little."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], place).align = 1
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), codegen


def _place(context: Any, builder: Any, kind: Any, array: Any, at: Any, lanes: int) -> Any:
    """Pointer to array[at : at + lanes] as one vector."""
    data = context.make_array(kind)(context, builder, value=array).data
    vector = ir.VectorType(ir.IntType(kind.dtype.bitwidth), lanes)
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


def _load(context: Any, builder: Any, kind: Any, array: Any, at: Any, lanes: int = LANES) -> Any:
    value = builder.load(_place(context, builder, kind, array, at, lanes))
    value.align = kind.dtype.bitwidth // 8
    return value


def _store(context: Any, builder: Any, kind: Any, array: Any, at: Any, value: Any) -> None:
    place = _place(context, builder, kind, array, at, value.type.count)
    builder.store(value, place).align = kind.dtype.bitwidth // 8


def _everywhere(builder: Any, value: Any) -> Any:
    """A vector of LANES times the same."""
    i32, none = ir.IntType(32), ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    one = builder.insert_element(none, value, ir.Constant(i32, 0))
    return builder.shuffle_vector(one, none, ir.Constant(ir.VectorType(i32, LANES), [0] * LANES))


def _packed(builder: Any, value: Any, mask: Any) -> Any:
    """The lanes whose bit is set, first to last; what follows them is anything."""
    kind = value.type
    chosen = builder.bitcast(mask, ir.VectorType(ir.IntType(1), kind.count))
    name = f"llvm.x86.avx512.mask.compress.v{kind.count}i{kind.element.width}"
    signature = ir.FunctionType(kind, [kind, kind, chosen.type])
    function = builder.module.declare_intrinsic(name, (), signature)
    return builder.call(function, [value, ir.Constant(kind, ir.Undefined), chosen])


@_llvm
def differs32(typing_context: Any, a: Any, b: Any, at: Any) -> Any:
    """u32 whose bit j says a[at + j] != b[at + j]."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, y = (_load(context, builder, signature.args[i], arguments[i], arguments[2]) for i in (0, 1))
        return builder.bitcast(builder.icmp_unsigned("!=", x, y), ir.IntType(32))

    return types.uint32(a, b, types.int64), codegen


@_llvm
def at_least32(typing_context: Any, a: Any, at: Any, least: Any) -> Any:
    """u32 whose bit j says a[at + j] >= least, unsigned; `least` fits a word of `a`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = _load(context, builder, signature.args[0], arguments[0], arguments[1])
        least = _everywhere(builder, builder.trunc(arguments[2], x.type.element))
        return builder.bitcast(builder.icmp_unsigned(">=", x, least), ir.IntType(32))

    return types.uint32(a, types.int64, types.uint64), codegen


@_llvm
def pack32(typing_context: Any, words: Any, at: Any, mask: Any, out: Any, out_at: Any) -> Any:
    """Write the words[at + j] whose bit j is set to out[out_at:]; up to 32 words behind them become anything."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, _, _, out_kind, _ = signature.args
        words, at, mask, out, out_at = arguments
        lanes = min(LANES, 512 // kind.dtype.bitwidth)
        for first in range(0, LANES, lanes):
            value = _load(context, builder, kind, words, builder.add(at, ir.Constant(at.type, first)), lanes)
            here = builder.trunc(builder.lshr(mask, ir.Constant(mask.type, first)), ir.IntType(lanes))
            _store(context, builder, out_kind, out, out_at, _packed(builder, value, here))
            if first + lanes < LANES:
                out_at = builder.add(out_at, builder.zext(builder.ctpop(here), out_at.type))
        return context.get_dummy_value()

    return types.void(words, types.int64, types.uint32, out, types.int64), codegen


@_llvm
def pack_places32(typing_context: Any, start: Any, mask: Any, out: Any, out_at: Any) -> Any:
    """Write start + j for each bit j that is set to the u16 out[out_at:], as `pack32` does."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, mask, out, out_at = arguments
        numbers = ir.Constant(ir.VectorType(ir.IntType(16), LANES), list(range(LANES)))
        places = builder.add(_everywhere(builder, start), numbers)
        _store(context, builder, signature.args[2], out, out_at, _packed(builder, places, mask))
        return context.get_dummy_value()

    return types.void(types.uint16, types.uint32, out, types.int64), codegen


@_llvm
def narrow32(typing_context: Any, words: Any, at: Any, out: Any, out_at: Any) -> Any:
    """Write the low bytes of 32 words[at:] to the u8 out[out_at:]."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, at, out, out_at = arguments
        value = _load(context, builder, signature.args[0], words, at)
        narrow = builder.trunc(value, ir.VectorType(ir.IntType(8), LANES))
        _store(context, builder, signature.args[2], out, out_at, narrow)
        return context.get_dummy_value()

    return types.void(words, types.int64, out, types.int64), codegen
