"""Tensors meet a program: every check that can be made before anything is compiled or launched.

    bind     names, shapes, dtypes, devices, gradients and overlaps -> Bound (sizes, Problem, tensors with outputs)
    check    the part of it that needs no memory: what a graph that is being traced has
    Bound    what a backend's `launch` needs

Raises one `CallError` per mistake; nothing is allocated before the last check has passed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from coda import torch_private
from coda.arguments import arguments
from coda.errors import (
    DeviceMismatch,
    DTypeUnsupported,
    NotDifferentiable,
    OverlappingOutput,
    ShapeMismatch,
    UnknownOperand,
    near,
    shown,
)
from coda.primitives.types import DType, Kind
from coda.primitives.value import Value
from coda.problem import GEMM_DTYPES, Problem, TensorSpec, compute_dtype
from coda.program import EpilogueProgram, Operand

FLOATS = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
NO_GRADIENT = "call it under torch.no_grad(), and write the backward as a kernel of its own"
INTS = ("int64", "int32", "int16", "int8", "uint8")
_INT_DTYPES = tuple(getattr(torch, name) for name in INTS)


@dataclass(frozen=True)
class Bound:
    """One checked call."""

    problem: Problem
    tensors: dict[str, Any]
    """`a`, `b`, operands, and every output as `out.NAME`; scalars are numbers or 0-d tensors."""
    outputs: tuple[str, ...]


def dtype_name(tensor: torch.Tensor) -> str:
    """ "bfloat16" of torch.bfloat16."""
    return str(tensor.dtype).removeprefix("torch.")


def held(given: Mapping[str, Any]) -> dict[str, str]:
    """What programs are specialised for: "int" or "float" of each tensor by name. Others, as of booleans, are left to the
    checks of a call."""
    return {
        name: "float" if x.is_floating_point() else "int"
        for name, x in given.items()
        if isinstance(x, torch.Tensor) and (x.dtype in _INT_DTYPES or x.is_floating_point())
    }


def bind(
    program: EpilogueProgram, args: Sequence[Any], operands: Mapping[str, Any], out: Mapping[str, Any] | None
) -> Bound:
    """Check a call and allocate its outputs."""
    given = arguments(program, args, operands)
    m, n, k, dtype, device = check(program, given)
    tensors = {
        name: x.resolve_neg() if isinstance(x, torch.Tensor) else x  # a kernel reads memory as it is
        for name, x in given.items()
    }
    _check_gradients(program, tensors)
    check_tangents(program.name, {**tensors, **{f"out={name!r}": t for name, t in (out or {}).items()}})
    results = _outputs(program, tensors, out or {}, m, n, dtype, device)
    tensors.update({f"out.{name}": t for name, t in results.items()})
    arch = None
    if device.type == "cuda":
        major, minor = _capability(device)
        arch = f"sm_{major}{minor}"
    specs = tuple(sorted((name, spec_of(t)) for name, t in tensors.items() if isinstance(t, torch.Tensor) and t.ndim))
    return Bound(Problem(m, n, k, dtype, specs, arch), tensors, tuple(o.name for o in program.outputs))


def check(program: EpilogueProgram, given: Mapping[str, Any]) -> tuple[int, int, int, str, torch.device]:
    """M, N, K, dtype and device of complete arguments by name, which need not have memory; M and K may be symbolic. Raises a
    `CallError`."""
    for name, x in given.items():
        _check_type(program, name, x)
    shapes = {name: tuple(x.shape) for name, x in given.items() if isinstance(x, torch.Tensor)}
    decides, _ = program.decides_columns
    if len(shapes[decides]) == 2:
        shapes[decides] = (shapes[decides][0], int(shapes[decides][1]))  # N is a number also where a graph is traced
    m, n, k = program.sizes(shapes)
    dtype = _dtype(program, given)
    program.check_sizes(n)
    for operand in program.operands:
        _check_operand(program, operand, given[operand.name], m, n, dtype)
    return m, n, k, dtype, _device(program, given)


def new_outputs(
    program: EpilogueProgram, m: int, n: int, dtype: str, device: torch.device, given: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """Contiguous tensors for the outputs that were not given, by name."""
    return {
        o.name: torch.empty(
            program.output_shape(o.name, m, n),
            dtype=getattr(torch, program.output_dtype(o.name, dtype)),
            device=device,
        )
        for o in program.outputs
        if o.name not in given
    }


_CAPABILITY: dict[int, tuple[int, int]] = {}


def _capability(device: torch.device) -> tuple[int, int]:
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _CAPABILITY:
        _CAPABILITY[index] = torch.cuda.get_device_capability(index)
    return _CAPABILITY[index]


def spec_of(t: torch.Tensor) -> TensorSpec:
    """Dtype, stride class and 16-byte alignment of a tensor."""
    item = t.element_size()
    if t.ndim == 1:
        layout = "row" if t.stride(0) == 1 or t.shape[0] <= 1 else "any"
        return TensorSpec(dtype_name(t), layout, t.data_ptr() % 16 == 0)  # type: ignore[arg-type]
    rows, columns = t.stride()
    # a matrix of one row or one column is contiguous either way; its useless stride says nothing
    if columns == 1 or t.shape[1] <= 1:
        layout, outer = "row", rows
    elif rows == 1 or t.shape[0] <= 1:
        layout, outer = "col", columns
    else:
        layout, outer = "any", 0
    return TensorSpec(dtype_name(t), layout, t.data_ptr() % 16 == 0 and outer * item % 16 == 0)  # type: ignore[arg-type]


def _check_type(program: EpilogueProgram, name: str, x: Any) -> None:
    """Dense real tensors, and numbers where the program takes a scalar."""
    scalar = name not in ("a", "b") and program.operand(name).kind is Kind.SCALAR
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.is_quantized or x.is_complex():
            raise DTypeUnsupported(
                f"{program.name}: {name}", got=f"{x.layout} {x.dtype}", expected="a dense real tensor"
            )
        return
    if scalar and isinstance(x, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(x, bool):
        return
    expected = "a number or a 0-d tensor" if scalar else "a torch tensor"
    hint = None
    if isinstance(x, Value):
        hint = "a program calls no kernel: write a @coda.plan that calls both"
    elif isinstance(x, (str, bytes)):
        hint = f"text is not read as numbers: pass {expected}"
    elif isinstance(x, Sequence) or hasattr(x, "__array__"):
        hint = f"convert it: torch.as_tensor({name})"
    raise DTypeUnsupported(f"{program.name}: {name}", got=shown(x), expected=expected, hint=hint)


def _dtype(program: EpilogueProgram, tensors: Mapping[str, Any]) -> str:
    """Of `a` and `b`, or of the first tile: the one that decides the compute dtype and default stores."""
    if program.kind == "pointwise":
        first = program.first_tile
        assert first is not None
        return _tile_dtype(program, first.name, tensors[first.name])
    a, b = dtype_name(tensors["a"]), dtype_name(tensors["b"])
    for name, dtype in (("a", a), ("b", b)):
        if dtype not in GEMM_DTYPES:
            raise DTypeUnsupported(f"{program.name}: {name}", got=dtype, expected=", ".join(GEMM_DTYPES))
    if a != b:
        raise DTypeUnsupported(
            f"{program.name}: a and b differ",
            got=f"{a} and {b}",
            expected="one dtype",
            hint="convert one: b.to(a.dtype)",
        )
    return a


def _tile_dtype(program: EpilogueProgram, name: str, x: torch.Tensor) -> str:
    if dtype_name(x) not in FLOATS:
        raise DTypeUnsupported(f"{program.name}: {name}", got=dtype_name(x), expected=", ".join(FLOATS))
    return dtype_name(x)


def _check_operand(program: EpilogueProgram, operand: Operand, x: Any, m: int, n: int, dtype: str) -> None:
    what = f"{program.name}: {operand.name}"
    if not isinstance(x, torch.Tensor):
        if operand.dtype is DType.INT and not isinstance(x, (int, torch.SymInt)):
            raise DTypeUnsupported(what, got=repr(x), expected="an int")
        return
    expected = operand.shape(m, n)
    if tuple(x.shape) != expected:
        raise ShapeMismatch(what, got=tuple(x.shape), expected=expected, hint=_shape_hint(operand, x, m, n))
    name = dtype_name(x)
    allowed = INTS if operand.dtype is DType.INT else FLOATS
    if name not in allowed or (name == "float64" and compute_dtype(dtype) != "float64"):
        if name == "float64":
            hint = "fp64 operands need an fp64 `a`"
        else:
            hint = f"convert it: {operand.name}.{'int' if operand.dtype is DType.INT else 'float'}()"
        raise DTypeUnsupported(what, got=name, expected=", ".join(a for a in allowed if a != "float64"), hint=hint)


def _shape_hint(operand: Operand, x: torch.Tensor, m: int, n: int) -> str | None:
    shape = tuple(x.shape)
    if operand.kind is Kind.TILE and shape == operand.shape(m, n)[::-1]:
        return f"it is transposed: {operand.name}.mT"
    if operand.kind is Kind.TILE and len(shape) == 2 and shape[0] == m:
        for width, spelled in ((2 * n, "2"), (n, "1"), (n / 2, "0.5")):
            if shape[1] == width:
                return f"declare it as Tile(width={spelled}) if each row really has {shape[1]} columns"
    if operand.kind is Kind.ROW and shape == (m,):
        return "it has one number per row: declare it as ColVector"
    if operand.kind is Kind.COL and shape == (n,):
        return "it has one number per column: declare it as RowVector"
    if operand.kind in (Kind.ROW, Kind.COL) and len(shape) == 2 and 1 in shape:
        return f"vectors are one-dimensional: {operand.name}.flatten()"
    return None


def _device(program: EpilogueProgram, tensors: Mapping[str, Any]) -> torch.device:
    devices = {name: t.device for name, t in tensors.items() if isinstance(t, torch.Tensor)}
    first = next(iter(devices.values()))
    wrong = {name: str(d) for name, d in devices.items() if d != first}
    if wrong:
        raise DeviceMismatch(f"{program.name}: tensors on different devices", got=wrong, expected=str(first))
    return first


def _check_gradients(program: EpilogueProgram, tensors: Mapping[str, Any]) -> None:
    if not torch.is_grad_enabled():
        return
    wanting = [name for name, t in tensors.items() if isinstance(t, torch.Tensor) and t.requires_grad]
    if wanting:
        raise NotDifferentiable(
            f"{program.name}: a raw kernel call has no gradient",
            got=f"requires_grad on {', '.join(wanting)}",
            hint=NO_GRADIENT,
        )


def check_tangents(name: str, tensors: Mapping[str, Any]) -> None:
    """As for gradients, of forward-mode differentiation: `torch.no_grad` does not end that. Raises `NotDifferentiable`."""
    if not torch_private.dual():
        return
    carrying = [n for n, t in tensors.items() if isinstance(t, torch.Tensor) and _tangent(t) is not None]
    if carrying:
        raise NotDifferentiable(
            f"{name}: a raw kernel call has no derivative",
            got=f"a tangent of {', '.join(carrying)}",
            hint="give it torch.autograd.forward_ad.unpack_dual(x).primal, and write the derivative as a kernel of its own",
        )


def _tangent(t: torch.Tensor) -> torch.Tensor | None:
    found: torch.Tensor | None = forward_ad.unpack_dual(t).tangent  # type: ignore[no-untyped-call]
    return found


def _outputs(
    program: EpilogueProgram,
    tensors: Mapping[str, Any],
    out: Mapping[str, Any],
    m: int,
    n: int,
    dtype: str,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    check_targets(program, out, m, n, dtype, device)
    _check_overlaps(program, tensors, out)
    new = new_outputs(program, m, n, dtype, device, out)
    return {o.name: out[o.name] if o.name in out else new[o.name] for o in program.outputs}


def check_targets(
    program: EpilogueProgram, out: Mapping[str, Any], m: int, n: int, dtype: str, device: torch.device
) -> None:
    """What `out=` must be, but for where it lies. Raises a `CallError`."""
    names = [o.name for o in program.outputs]
    for name, t in out.items():
        if name not in names:
            raise UnknownOperand(
                f"{program.name} has no output {name!r}", expected=", ".join(names), hint=near(name, names)
            )
        what, shape = f"{program.name}: out={name!r}", program.output_shape(name, m, n)
        if not isinstance(t, torch.Tensor) or tuple(t.shape) != shape:
            got = tuple(t.shape) if isinstance(t, torch.Tensor) else type(t).__name__
            raise ShapeMismatch(what, got=got, expected=shape)
        expected = program.output_dtype(name, dtype)
        if dtype_name(t) != expected:
            raise DTypeUnsupported(what, got=dtype_name(t), expected=expected)
        if t.is_neg():
            raise DTypeUnsupported(what, got="a negated view", expected="memory as it is")
        if t.device != device:
            raise DeviceMismatch(what, got=str(t.device), expected=str(device))
        check_writable(what, t)


def check_writable(what: str, t: torch.Tensor) -> None:
    """Refuse memory that no kernel may write into. Raises `OverlappingOutput` where an element may share its place with
    another one, as in broadcast and sliding views, and `NotDifferentiable` where autograd would not hear of the write."""
    if t.requires_grad and torch.is_grad_enabled():
        raise NotDifferentiable(f"{what} wants a gradient, and a raw kernel call has none", hint=NO_GRADIENT)
    if not t.numel():
        return
    reach = 0  # of the smaller strides together
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True), key=lambda axis: axis[0]):
        if stride <= reach and size > 1:
            raise OverlappingOutput(f"{what} overlaps itself", got=f"shape {tuple(t.shape)}, strides {t.stride()}")
        reach += (size - 1) * stride


def extent(t: torch.Tensor) -> tuple[int, int]:
    """First and past-the-end byte address that the tensor can touch."""
    first = t.data_ptr()
    return first, first + span(t)


def span(t: torch.Tensor) -> int:
    """Bytes from the first to the last element, both included; 0 of an empty tensor."""
    if not t.numel():
        return 0
    return (1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride(), strict=True))) * t.element_size()


def _check_overlaps(program: EpilogueProgram, tensors: Mapping[str, Any], out: Mapping[str, torch.Tensor]) -> None:
    """`out=` may be exactly a tile operand of the output's width and dtype; it shares nothing else."""
    written = [(name, t) for name, t in out.items() if t.numel() and not t.is_meta]  # which lies nowhere
    for at, (name, t) in enumerate(written):
        low, high = extent(t)
        others = [(f"out={other!r}", x) for other, x in written[at + 1 :]]
        others += [(n, x) for n, x in tensors.items() if isinstance(x, torch.Tensor) and x.numel()]
        for other, x in others:
            a, b = extent(x)
            if b <= low or high <= a:
                continue
            same = (
                x.data_ptr() == t.data_ptr() and x.shape == t.shape and x.stride() == t.stride() and x.dtype == t.dtype
            )
            if (
                same
                and other not in ("a", "b")
                and not other.startswith("out=")
                and program.operand(other).kind is Kind.TILE
            ):
                continue
            raise OverlappingOutput(
                f"{program.name}: out={name!r} shares memory with {other}",
                expected="separate memory, or exactly a tile operand of equal width and dtype",
            )
