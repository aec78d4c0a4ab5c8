"""Every use of a private or undocumented API of quack-kernels and CUTLASS, with the reason; nothing else touches one.

    asm_f32, asm_s32            one PTX instruction on registers: `cutlass._mlir` is the only way to inline assembly
    select_pairs, sixteen_bits  the compare-and-select pair of quack's column select, which our own select builds on
    forget_plans                quack keeps a plan per shape for ever
    inside                      of a plan, what its `run` calls: that takes some 8 µs of Python to find it out again
    recorded                    stages and shared memory of a kernel: quack computes both and reports neither
    hooks                       methods of quack's operators that our operators override: see `operators.py`

Works with quack-kernels 0.6.5 on nvidia-cutlass-dsl 4.7.1 (CUDA 13) and 4.8.1 (CUDA 12 and 13); `configs.PINNED`
refuses others. Annotations are values here (cute reads them), so they are not postponed; mypy leaves the file alone, since what it
calls has no types.
"""  # noqa: I002
# mypy: ignore-errors

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op
from cutlass.utils import SmemAllocator
from quack.epilogue.ops import GroupedColStatsBase, Scalar, _dup_s16sat_from_s32, _selp_pair_f16x2
from quack.gemm_sm90 import GemmSm90
from quack.gemm_sm100 import GemmSm100

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


def forget_plans(mod: object) -> None:
    """Empty the plans that quack keeps by full shapes and strides, without bound: a `Runner` keeps its own."""
    mod._plan_cache.clear()


@dataclass(frozen=True)
class Inside:
    """What a plan's `run` calls: `function(A, B, D, C, fields, scheduler, None, None, None)`."""

    function: Callable[..., None]
    fields: tuple[str, ...]
    """Of the epilogue's arguments, in order; those that are not in `taken` are None."""
    taken: frozenset[str]
    numbers: frozenset[str]
    """Those taken that quack wraps: a number by value, a number on the device by its address."""
    scheduler: tuple


def inside(plan: object) -> Inside | None:
    """Of an `EpiPlan`; None where a run would do more than call the function."""
    p = plan.gemm_plan
    if plan.swapped or not plan.b_kn or p.scheduler_static is None or p.split_k != 1 or p.cu_tiles_tile_m is not None:
        return None
    functions = {name: getattr(convert, "__func__", None) for name, convert, _ in p.call_ops if convert is not None}
    if not set(functions.values()) <= {Scalar.host_call_arg, GroupedColStatsBase.host_call_arg}:
        return None
    wrapped = {name for name, function in functions.items() if function is Scalar.host_call_arg}
    taken = frozenset(name for name, _, _ in p.call_ops)
    return Inside(p.compiled_fn, tuple(p.arg_template), taken, frozenset(wrapped), p.scheduler_static)


@contextlib.contextmanager
def recorded() -> Iterator[tuple[list, list]]:
    """Two lists that receive, for every kernel traced inside, its stages and the bytes of shared memory it asks for."""
    stages: list = []
    shared: list = []
    with contextlib.ExitStack() as undo:
        for cls in (GemmSm90, GemmSm100):
            _listen(undo, cls, "_compute_stages", lambda args, result: stages.append(tuple(map(int, result))))
        _listen(undo, SmemAllocator, "allocate", lambda args, result: shared.append(_size(args)))
        yield stages, shared


def _size(args: tuple) -> int:
    wanted = args[1] if len(args) > 1 else 0
    return wanted if isinstance(wanted, int) else int(getattr(wanted, "size_in_bytes", int)())


def _listen(undo: contextlib.ExitStack, cls: type, name: str, hear: object) -> None:
    cls = next(c for c in cls.__mro__ if name in c.__dict__)
    original = cls.__dict__[name]
    bound = isinstance(original, (classmethod, staticmethod))
    inner = original.__func__ if bound else original

    @functools.wraps(inner)
    def heard(*args, **kwargs):
        result = inner(*args, **kwargs)
        hear(args, result)
        return result

    setattr(cls, name, type(original)(heard) if bound else heard)
    undo.callback(setattr, cls, name, original)
