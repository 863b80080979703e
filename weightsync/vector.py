"""The door to numba, where it is installed: how kernels are compiled, and the vector instructions that Python lacks.

Every kernel releases the GIL and is cached on disk; set NUMBA_CACHE_DIR where the package's folder is read-only. numba
compiles a cached kernel again when the kernel's own file changed, not when another one did from which it calls: kernels
that share a function stand in one file, and who changes this one empties the cache.
"""

from collections.abc import Callable
from typing import Any

try:
    import numba
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    HAVE_NUMBA = True
except ImportError:
    HAVE_NUMBA = False


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
