"""Make Triton's CPU interpreter compute as the GPU does where it does not by itself.

Triton 3.6 to 3.9 hold bfloat16 as 16-bit and float8 as 8-bit integers, and do arithmetic on those bit patterns: sums,
products and `tl.dot` of bfloat16 are garbage, and nothing says so. float32 is cut off rather than rounded on its way
to bfloat16, and loses the carry on its way to float8. `install` replaces these operations: operands are widened to
float32, the result is rounded to nearest even and, for float8, saturated, as `cvt.rn.satfinite` does on the GPU.

It also repairs smaller differences: `range` with a run-time limit, which fails in triton 3.6 with numpy 2.4 or later;
conditions on scalars that widen to a block, which triton 3.9 refuses as masks; `tl.maximum` and `tl.minimum`, which
give the number and not the NaN on a GPU; and float32 `tl.dot`, whose operands the tensor cores read as tf32 (10 bits of
mantissa) unless `input_precision="ieee"` is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton._C.libtriton import ir
from triton.runtime import interpreter

Array = NDArray[Any]
Handle = interpreter.TensorHandle

NARROW = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
"""The formats that numpy has no type for, as torch calls them."""

LARGEST = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
"""What conversions to float8 saturate at (OCP 8-bit floating point specification, table 1)."""

BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)
TF32_MASK = np.uint32(0xFFFFE000)


def widen(data: Array, dtype: tl.dtype) -> Array:
    """float32 values of bit patterns of bfloat16 or float8."""
    bits = np.ascontiguousarray(data)
    if dtype == tl.bfloat16:
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return torch.from_numpy(bits.view(np.uint8).copy()).view(NARROW[dtype]).float().numpy()


def narrow(values: Array, dtype: tl.dtype) -> Array:
    """Bit patterns of float32 values in bfloat16 or float8: rounded to nearest even, float8 saturated, NaN kept."""
    wide = torch.from_numpy(np.array(values, dtype=np.float32, order="C"))
    if dtype in LARGEST:
        wide = wide.clamp(-LARGEST[dtype], LARGEST[dtype])
    rounded = wide.to(NARROW[dtype])
    if dtype == tl.bfloat16:
        return rounded.view(torch.int16).numpy().view(np.uint16)
    return rounded.view(torch.uint8).numpy()


def is_narrow(dtype: tl.dtype) -> bool:
    """Whether the interpreter holds this type (or a block of it) as bit patterns."""
    return dtype.scalar in NARROW


def values_of(handle: Handle) -> Array:
    """What a handle holds, as numbers."""
    return widen(handle.data, handle.dtype.scalar) if is_narrow(handle.dtype) else handle.data


def holding(values: Array, dtype: tl.dtype) -> Handle:
    """A handle of `dtype` that holds these numbers; truth values become int1."""
    scalar = dtype.scalar
    if values.dtype == np.bool_:
        return Handle(values, tl.int1)
    if is_narrow(scalar):
        return Handle(narrow(values, scalar), scalar)
    return Handle(values.astype(interpreter._get_np_dtype(scalar)), scalar)


def _patch_casts(builder: type[interpreter.InterpreterBuilder]) -> None:
    cast, fp_to_fp = builder.cast_impl, builder.create_fp_to_fp

    def cast_impl(self: Any, src: Handle, dst_type: tl.dtype) -> Handle:
        if is_narrow(src.dtype) or is_narrow(dst_type):
            return holding(values_of(src), dst_type)
        return cast(self, src, dst_type)

    def create_fp_to_fp(self: Any, src: Handle, dst_type: tl.dtype, rounding: Any) -> Handle:
        if not (is_narrow(src.dtype) or is_narrow(dst_type)):
            return fp_to_fp(self, src, dst_type, rounding)
        if dst_type.scalar == tl.bfloat16 and rounding == ir.ROUNDING_MODE.RTZ:
            bits = np.ascontiguousarray(values_of(src).astype(np.float32)).view(np.uint32)
            return Handle((bits >> 16).astype(np.uint16), tl.bfloat16)
        return holding(values_of(src), dst_type)

    def get_bf16(self: Any, value: float) -> Handle:
        return Handle(narrow(np.array([value]), tl.bfloat16), tl.bfloat16)

    builder.cast_impl, builder.create_fp_to_fp, builder.get_bf16 = cast_impl, create_fp_to_fp, get_bf16


def _patch_arithmetic(builder: type[interpreter.InterpreterBuilder]) -> None:
    binary, unary, fma = builder.binary_op, builder.unary_op, builder.create_fma

    def binary_op(self: Any, lhs: Handle, rhs: Handle, op: Callable[..., Array]) -> Handle:
        if is_narrow(lhs.dtype) and op not in BITWISE:
            return holding(op(values_of(lhs), values_of(rhs)), lhs.dtype)
        return binary(self, lhs, rhs, op)

    def unary_op(self: Any, arg: Handle, op: Callable[..., Array]) -> Handle:
        return holding(op(values_of(arg)), arg.dtype) if is_narrow(arg.dtype) else unary(self, arg, op)

    def create_fma(self: Any, x: Handle, y: Handle, z: Handle) -> Handle:
        if not is_narrow(z.dtype):
            return fma(self, x, y, z)
        product = values_of(x).astype(np.float64) * values_of(y)
        return holding(product + values_of(z), z.dtype)

    def create_clampf(self: Any, arg: Handle, lo: Handle, hi: Handle, nans: Any) -> Handle:
        largest, smallest = (np.fmin, np.fmax) if nans == ir.PROPAGATE_NAN.NONE else (np.minimum, np.maximum)
        return self.binary_op(self.binary_op(arg, lo, smallest), hi, largest)

    builder.binary_op, builder.unary_op = binary_op, unary_op
    builder.create_fma, builder.create_clampf = create_fma, create_clampf
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)


def _dot_operand(handle: Handle, precision: Any) -> Array:
    values = values_of(handle)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    if values.dtype == np.float32 and not is_narrow(handle.dtype) and precision == ir.INPUT_PRECISION.TF32:
        return (np.ascontiguousarray(values).view(np.uint32) & TF32_MASK).view(np.float32)
    return values


def _patch_dot(builder: type[interpreter.InterpreterBuilder]) -> None:
    def create_dot(self: Any, a: Handle, b: Handle, d: Handle, input_precision: Any, imprecise: Any) -> Handle:
        left, right = _dot_operand(a, input_precision), _dot_operand(b, input_precision)
        if np.issubdtype(left.dtype, np.integer):  # float64 holds these sums exactly, and has a fast matrix product
            product = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64)
        else:  # products of 16-bit and 8-bit floats are exact in float32
            product = np.matmul(left, right)
        return Handle((product + d.data).astype(d.data.dtype), d.dtype.scalar)

    builder.create_dot = create_dot


def _patch_reductions() -> None:
    base = interpreter.ReduceScanOpInterface
    apply = base.apply

    def widened(tensor: Any) -> Any:
        if not is_narrow(tensor.dtype):
            return tensor
        return base.to_tensor(None, values_of(tensor.handle), tl.float32)

    def narrowed(tensor: Any, dtype: tl.dtype) -> Any:
        if not (is_narrow(dtype) and tensor.dtype == tl.float32):
            return tensor
        kind = tl.block_type(dtype, list(tensor.shape)) if len(tensor.shape) else dtype
        return tl.core.tensor(holding(tensor.handle.data, dtype), kind)

    def apply_widened(self: Any, given: Any) -> Any:
        if not isinstance(given, tuple):
            return self.apply((given,))[0]
        results = apply(self, tuple(widened(tensor) for tensor in given))
        dtypes = [tensor.dtype for tensor in given] + [tl.int32] * len(results)
        return tuple(narrowed(tensor, dtype) for tensor, dtype in zip(results, dtypes, strict=False))

    base.apply = apply_widened


def _patch_splat(builder: type[interpreter.InterpreterBuilder]) -> None:
    splat = builder.create_splat

    def create_splat(self: Any, kind: Any, arg: Handle) -> Handle:
        """A condition stays one: its handle is labelled with the type of what was compared, and so is a block of it."""
        made = splat(self, kind, arg)
        return Handle(made.data.astype(np.bool_), made.dtype) if arg.data.dtype == np.bool_ else made

    builder.create_splat = create_splat


def _patch_index() -> None:
    patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        for name in ("__index__", "__int__"):
            scope.set_attr(tensor, name, lambda self: int(self.handle.data.reshape(-1)[0]))

    interpreter._patch_lang_tensor = patch_lang_tensor


def install() -> None:
    """Replace what the interpreter gets wrong, in this process; a second call does nothing."""
    builder = interpreter.InterpreterBuilder
    if builder.create_dot.__module__ != __name__:
        _patch_casts(builder)
        _patch_arithmetic(builder)
        _patch_dot(builder)
        _patch_reductions()
        _patch_splat(builder)
        _patch_index()
