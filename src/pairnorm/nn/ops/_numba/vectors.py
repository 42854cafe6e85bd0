"""Building blocks of kernels in numba: compilation, threads, vectors of numbers, activations, memory.

Loops written with vectors keep sums in registers, as LLVM alone does not.

``load(matrix, row, start)`` takes ``LANES`` columns of a row, with zeros for those beyond the last, and
``store`` writes them back. Operators work lane by lane, with a vector or a number of its type on the right.
"""

import ctypes
import mmap
import operator
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic, overload, register_model
from numba.extending import models as numba_models
from torch import Tensor

# Two to four registers each, so that the four sums of a product and what they are made of fit the machine.
LANES = 32 if get_host_cpu_features().get("avx512f") else 16
# Sums may be reordered and multiplications fused, but NaN must stay NaN.
FAST = ("reassoc", "contract", "arcp", "nsz")
INT = ir.IntType(32)


class KernelWarning(UserWarning):
    """Kernels are compiled in every process."""


class _DiskCache(FunctionCache):  # type: ignore[misc]
    """Cache of compiled code on disk; damaged and unwritable files are ignored."""

    def load_overload(self, *what: Any) -> Any:
        try:
            return super().load_overload(*what)
        except Exception:
            self._reset()
            return None

    def save_overload(self, *what: Any) -> None:
        try:
            super().save_overload(*what)
        except OSError:
            self._reset()

    def _reset(self) -> None:
        try:
            self.flush()
        except OSError:
            self.disable()  # it cannot be written either: the code stays in memory


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, with a cache on disk where a folder can be written."""
    compiled = njit(nogil=True, error_model="numpy")(function)
    try:
        compiled._cache = _DiskCache(function)
    except (OSError, RuntimeError):  # no folder can be written, nor that of the user
        _warn_no_cache()
    return compiled


@cache
def _warn_no_cache() -> None:
    warnings.warn(
        "compiled kernels cannot be cached: every process takes some seconds to compile them. Set "
        "NUMBA_CACHE_DIR to a folder that can be written.",
        KernelWarning,
        stacklevel=3,
    )


def share_out(rows: int, rows_per_task: int, work: Callable[[int, int], Any]) -> list[Any]:
    """Call ``work(start, stop)``, which frees the GIL, in torch's number of threads; return its results."""
    starts = range(0, rows, rows_per_task)
    stops = [min(start + rows_per_task, rows) for start in starts]
    threads = min(torch.get_num_threads(), len(starts))
    if threads <= 1:
        return [*map(work, starts, stops)]
    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(work, starts, stops)]


class Vector(types.Type):  # type: ignore[misc]
    """The numba type of ``LANES`` numbers of one type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Vector({dtype})")


@register_model(Vector)
class _VectorModel(numba_models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, _llvm(vector))


def _llvm(vector: Vector) -> ir.VectorType:
    element = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "uint32": INT}[str(vector.dtype)]
    return ir.VectorType(element, LANES)


def _call(builder: Any, operation: str, result: Any, *arguments: Any, flags: tuple[str, ...] = ()) -> Any:
    """Call one of LLVM's own functions on vectors."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(operation, (), kind), arguments, fastmath=flags)


def _fill(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, value, INT(0))
    return builder.shuffle_vector(first, undefined, ir.VectorType(INT, LANES)([0] * LANES))


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any]:
    """Return the address of ``matrix[row, start]`` and how many columns there are from there on."""
    kind = signature.args[0]
    matrix = context.make_array(kind)(context, builder, arguments[0])
    row, start = (
        context.cast(builder, argument, kind, types.intp)
        for argument, kind in zip(arguments[1:3], signature.args[1:3], strict=True)
    )
    offset = builder.mul(row, builder.extract_value(matrix.strides, 0))
    offset = builder.add(offset, builder.mul(start, start.type(kind.dtype.bitwidth // 8)))
    address = builder.add(builder.ptrtoint(matrix.data, start.type), offset)
    remaining = builder.trunc(builder.sub(builder.extract_value(matrix.shape, 1), start), INT)
    return builder.inttoptr(address, _llvm(Vector(kind.dtype)).as_pointer()), remaining


def _suffix(vector: Vector) -> str:
    return f"v{LANES}{'f' if isinstance(vector.dtype, types.Float) else 'i'}{vector.dtype.bitwidth}"


def _each_part(builder: Any, remaining: Any, full: Callable[[], Any], part: Callable[[Any], Any]) -> Any:
    """Emit ``full`` for full vectors, and ``part`` with a mask for the end of a row."""
    results = []
    with builder.if_else(builder.icmp_signed(">=", remaining, INT(LANES))) as (all_exist, some_exist):
        with all_exist:
            results.append((full(), builder.block))
        with some_exist:
            lanes = ir.VectorType(INT, LANES)(list(range(LANES)))
            results.append((part(builder.icmp_signed("<", lanes, _fill(builder, remaining))), builder.block))
    return results


@intrinsic
def load(typing: Any, matrix: Any, row: Any, start: Any) -> Any:
    """Return ``LANES`` columns of a row, from ``start`` on."""
    vector = Vector(matrix.dtype)
    kind, name = _llvm(vector), f"llvm.masked.load.{_suffix(vector)}.p0"

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, remaining = _address(context, builder, signature, arguments)
        none = ir.Constant(kind, None)
        masked = partial(_call, builder, name, kind, pointer, INT(4))
        values = _each_part(
            builder, remaining, lambda: builder.load(pointer, align=4), lambda mask: masked(mask, none)
        )
        result = builder.phi(kind)
        for value, block in values:
            result.add_incoming(value, block)
        return result

    return vector(matrix, row, start), build


@intrinsic
def store(typing: Any, matrix: Any, row: Any, start: Any, vector: Any) -> Any:
    """Write ``LANES`` columns of a row, from ``start`` on."""
    name = f"llvm.masked.store.{_suffix(vector)}.p0"

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, remaining = _address(context, builder, signature, arguments)
        masked = partial(_call, builder, name, ir.VoidType(), arguments[3], pointer, INT(4))
        _each_part(builder, remaining, lambda: builder.store(arguments[3], pointer, align=4), masked)
        return context.get_dummy_value()

    return types.none(matrix, row, start, vector), build


def _lower(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn ``function(builder, *arguments)`` into the code generator of an intrinsic."""
    return lambda context, builder, signature, arguments: function(builder, *arguments)


@intrinsic
def fill(typing: Any, value: Any) -> Any:
    """Return a number in every lane."""
    return Vector(value)(value), _lower(_fill)


@intrinsic
def total(typing: Any, vector: Any) -> Any:
    """Return the sum of the lanes."""
    kind, name = _llvm(vector).element, f"llvm.vector.reduce.fadd.{_suffix(vector)}"
    call = _lower(lambda builder, value: _call(builder, name, kind, kind(0.0), value, flags=FAST))
    return vector.dtype(vector), call


@intrinsic
def widen(typing: Any, vector: Any) -> Any:
    """Return the numbers in double precision."""
    wide = Vector(types.float64)
    return wide(vector), _lower(lambda builder, value: builder.fpext(value, _llvm(wide)))


@intrinsic
def where_less(typing: Any, a: Any, b: Any, chosen: Any, other: Any) -> Any:
    """Return, lane by lane, ``chosen`` where a < b and ``other`` elsewhere, also where a or b is NaN."""
    compare = "icmp_unsigned" if a.dtype == types.uint32 else "fcmp_ordered"
    return chosen(a, b, chosen, other), _lower(
        lambda builder, a, b, *choices: builder.select(getattr(builder, compare)("<", a, b), *choices)
    )


@intrinsic
def bits(typing: Any, vector: Any) -> Any:
    """Return floats as the integers that have the same bits, and integers as floats."""
    other = Vector(types.uint32 if vector.dtype == types.float32 else types.float32)
    return other(vector), _lower(lambda builder, value: builder.bitcast(value, _llvm(other)))


def _define_operator(
    function: Callable[..., Any], on_floats: str, on_integers: str, flags: tuple[str, ...] = ()
) -> None:
    @intrinsic
    def apply(typing: Any, a: Any, b: Any) -> Any:
        if isinstance(a.dtype, types.Float):
            return a(a, b), _lower(lambda builder, *both: getattr(builder, on_floats)(*both, flags=flags))
        return a(a, b), _lower(lambda builder, *both: getattr(builder, on_integers)(*both))

    @overload(function, inline="always", strict=False)
    def choose(a: Any, b: Any) -> Any:
        if isinstance(a, Vector) and b == a:
            return lambda a, b: apply(a, b)
        if isinstance(a, Vector) and b == a.dtype:
            return lambda a, b: apply(a, fill(b))
        return None


_define_operator(operator.add, "fadd", "add", FAST)
_define_operator(operator.sub, "fsub", "sub", ("contract",))  # x - high - low stays in this order
_define_operator(operator.mul, "fmul", "mul", FAST)
_define_operator(operator.and_, "", "and_")
_define_operator(operator.xor, "", "xor")
_define_operator(operator.lshift, "", "shl")
_define_operator(operator.rshift, "", "lshr")


# Memory for kernels, whatever torch's default dtype and device are.
zeros = partial(torch.zeros, dtype=torch.float32, device="cpu")

MIN_HUGE_BYTES = 2**22


def empty(*shape: Any) -> Tensor:
    """Return uninitialized memory, on huge pages where it is large and the system has some."""
    # The system provides a page when it is first touched: with 4 KiB each, that takes as long as PairNorm.
    return _on_huge_pages(torch.empty(*shape, dtype=torch.float32, device="cpu"))


def _on_huge_pages(memory: Tensor) -> Tensor:
    if sys.platform == "linux" and memory.nbytes >= MIN_HUGE_BYTES:
        start = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise()(start, memory.data_ptr() + memory.nbytes - start, mmap.MADV_HUGEPAGE)  # a hint only
    return memory


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def empty_by_model(models: int, nodes: int, features: int) -> tuple[Tensor, Tensor]:
    """Return memory ``[nodes, models, features]`` with a model's nodes together, and its view by model."""
    # The first is no view: autograd lets users change outputs in place only where they are none.
    shape, strides = (nodes, models, features), (features, nodes * features, 1)
    memory = _on_huge_pages(torch.empty_strided(shape, strides, dtype=torch.float32, device="cpu"))
    return memory, memory.transpose(0, 1)


def by_model(x: Tensor) -> Tensor:
    """Bring ``[nodes, models, features]`` to ``[models, nodes, features]``, contiguous: no copy if it is."""
    return x.detach().transpose(0, 1).contiguous()


def array(x: Tensor) -> Any:
    """Return a tensor as a contiguous NumPy array, detached from autograd."""
    return x.detach().contiguous().numpy()


MIN_EXPONENT = np.float32(-87.0)  # below it, exp is no normal number any more
LOG2_E = np.float32(1 / np.log(2))
# ln 2 in two parts, the first with so few digits that a multiple of it is exact.
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(np.log(2) - 0.693359375)
# Added to a number it leaves no place for a fraction, and the last bits are those of the exponent.
ROUND = np.float32(1.5 * 2**23 + 127)
ZERO, ONE = np.float32(0), np.float32(1)
SERIES = tuple(np.float32(c) for c in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2))


@njit(inline="always")
def exp_parts(x: Any) -> Any:
    """Return p, a power of two, and q with exp(x) = p (1 + q), for x up to 88."""
    x = where_less(x, fill(MIN_EXPONENT), fill(MIN_EXPONENT), x)
    shifted = x * LOG2_E + ROUND
    exponent = shifted - ROUND
    power = bits(bits(shifted) << np.uint32(23))
    r = x - exponent * LN2_HIGH - exponent * LN2_LOW
    series = r * SERIES[0] + SERIES[1]
    series = series * r + SERIES[2]
    series = series * r + SERIES[3]
    series = series * r + SERIES[4]
    series = series * r + SERIES[5]
    return power, series * r * r + r


@njit(inline="always")
def exp(x: Any) -> Any:
    """Return e to the power of every lane, for lanes up to 88."""
    p, q = exp_parts(x)
    return p * q + p


@njit(inline="always")
def activated(x: Any, code: int) -> Any:
    """Return the activation of every lane."""
    if code == 1:
        x = where_less(x, fill(ZERO), fill(ZERO), x)  # NaN stays NaN
    elif code == 2:
        p, q = exp_parts(x)
        x = where_less(x, fill(ZERO), p * q + (p - ONE), x)
    return x


@njit(inline="always")
def activation_gradient(grad: Any, y: Any, code: int) -> Any:
    """Return the gradient of what the activation was given, from that of its output ``y``."""
    if code == 1:
        grad = where_less(fill(ZERO), y, grad, fill(ZERO))
    elif code == 2:
        grad = where_less(fill(ZERO), y, grad, grad * (y + ONE))
    return grad
