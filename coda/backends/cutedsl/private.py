"""Every use of a private or undocumented API of quack-kernels and CUTLASS, with the reason; nothing else touches one.

    asm_f32, asm_s32            one PTX instruction on registers: `cutlass._mlir` is the only way to inline assembly
    select_pairs, sixteen_bits  the compare-and-select pair of quack's column select, which our own select builds on
    stages_recorded             how many A/B, epilogue and load stages a kernel got: quack computes and does not report it
    NO_DRIVER                   what a machine without a GPU raises after the object file of a kernel has been written
    hooks                       methods of quack's operators that our operators override: see `operators.py`

Works with quack-kernels 0.6.5 on nvidia-cutlass-dsl 4.7.1 (CUDA 13) and 4.8.1 (CUDA 12 and 13); `PINNED` says so to
`supports`. Annotations are values here (cute reads them), so they are not postponed.
"""  # noqa: I002

import contextlib
from collections.abc import Iterator

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op
from quack.epilogue.ops import _dup_s16sat_from_s32, _selp_pair_f16x2
from quack.gemm_sm90 import GemmSm90

PINNED = {"quack-kernels": ("0.6.5",), "nvidia-cutlass-dsl": ("4.7.1", "4.8.1")}
"""Versions whose private parts are known to be as used here."""

NO_DRIVER = ("DynamicLibNotFoundError", "DSLCudaRuntimeError", "CudaError", "CUDAError")
"""Names of exceptions that say "no driver": raised by the occupancy query, after compilation has finished."""

select_pairs = _selp_pair_f16x2
"""(packed wanted, packed offsets, x, y, otherwise) -> x or y where the offset is the wanted one."""
sixteen_bits = _dup_s16sat_from_s32
"""An integer, saturated to 16 bits, in both halves of a register."""


@dsl_user_op
def asm_f32(text, constraints, *args, loc=None, ip=None):
    """The fp32 result of a line of PTX. Pure: it may be moved and dropped."""
    values = [Float32(x).ir_value(loc=loc, ip=ip) for x in args]
    return Float32(
        llvm.inline_asm(
            T.f32(),
            values,
            text,
            constraints,
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


@dsl_user_op
def asm_s32(text, constraints, x, *, loc=None, ip=None):
    """The int32 result of a line of PTX on one fp32 register."""
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [Float32(x).ir_value(loc=loc, ip=ip)],
            text,
            constraints,
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


@dsl_user_op
def asm_f32_of_s32(text, constraints, x, *, loc=None, ip=None):
    """The fp32 result of a line of PTX on one int32 register."""
    return Float32(
        llvm.inline_asm(
            T.f32(),
            [Int32(x).ir_value(loc=loc, ip=ip)],
            text,
            constraints,
            has_side_effects=False,
            is_align_stack=False,
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


@contextlib.contextmanager
def stages_recorded() -> Iterator[list]:
    """The list that receives (A/B stages, store stages, load stages) of every kernel compiled inside."""
    found: list = []
    original = GemmSm90.__dict__["_compute_stages"]
    inner = original.__func__ if isinstance(original, (classmethod, staticmethod)) else original

    def recording(*args, **kwargs):
        result = inner(*args, **kwargs)
        found.append(tuple(result))
        return result

    wrapped = type(original)(recording) if isinstance(original, (classmethod, staticmethod)) else recording
    GemmSm90._compute_stages = wrapped
    try:
        yield found
    finally:
        GemmSm90._compute_stages = original
