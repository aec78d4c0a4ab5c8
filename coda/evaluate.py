"""Evaluate a program with PyTorch: the definition of what it means.

    evaluate    every output from bound tensors, in a compute dtype, with or without rounding at the stores
    reference   the same from call arguments, in fp64, never rounding: what "correct" is measured against

The reference backend and every reference value of the judge go through `evaluate`. A row value is a (1, columns) tensor,
a col value (M, 1), a segment value (M, columns / size); torch broadcasting does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coda.arguments import arguments
from coda.errors import DTypeUnsupported, ShapeMismatch, shown
from coda.primitives.map import round_to
from coda.primitives.types import DType, Kind
from coda.primitives.value import OPS, Node
from coda.program import EpilogueProgram, Operand

AUTOCAST = ("cpu", "cuda")
"""Types of devices for which PyTorch may be told to lower the precision of what it is asked for."""
Watch = Callable[[int, torch.Tensor], None]
"""Hears of a node's index and its value: a vector of rows as (M, 1), of columns as (1, C), a number as ()."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""a (M, K), b (K, N) -> their product, which becomes `acc` in the compute dtype."""


@dataclass(frozen=True)
class Evaluation:
    """The surroundings of one evaluation: what an operation's reference may use."""

    torch: Any
    m: int
    n: int
    dtype: torch.dtype
    device: torch.device
    rounds: bool
    product: Product | None = None


def evaluate(
    program: EpilogueProgram,
    tensors: Mapping[str, Any],
    *,
    m: int,
    n: int,
    dtype: torch.dtype,
    stored_as: str | None,
    watch: Watch | None = None,
    product: Product | None = None,
) -> dict[str, torch.Tensor]:
    """Every output by name. `watch` hears of every node's value as it is computed.

    `tensors` holds `a` (M, K) and `b` (K, N) of an epilogue and every operand that the program reads, checked before.
    `dtype` is the compute dtype; `stored_as` the dtype name of `a` (or of the first tile), or None to store the values
    as computed, unrounded. `product` computes `acc` another way than in full precision.
    """
    device = next(t.device for t in tensors.values() if isinstance(t, torch.Tensor))
    if device.type in AUTOCAST and torch.is_autocast_enabled(device.type):  # which would take products in 16 bits
        with torch.autocast(device.type, enabled=False):
            return evaluate(program, tensors, m=m, n=n, dtype=dtype, stored_as=stored_as, watch=watch, product=product)
    e = Evaluation(torch, m, n, dtype, device, stored_as is not None, product)
    last_use = {i: at for at, node in enumerate(program.nodes) for i in node.args}
    kept = {o.node for o in program.outputs}
    values: dict[int, torch.Tensor] = {}
    for index, node in enumerate(program.nodes):
        values[index] = _node(e, program, node, tensors, values)
        if watch is not None:
            watch(index, values[index])
        for i in node.args:  # large tensors go as soon as nobody needs them
            if last_use[i] == index and i not in kept:
                values.pop(i, None)
    out: dict[str, torch.Tensor] = {}
    taken = {t.untyped_storage().data_ptr() for t in tensors.values() if isinstance(t, torch.Tensor)}
    for output in program.outputs:
        shape = program.output_shape(output.name, m, n)
        value = _broadcast_to_kind(values[output.node], program.output_type(output.name).kind, shape)
        if stored_as is not None:
            value = round_to(torch, value, program.output_dtype(output.name, stored_as), output.saturate)
        elif value.dtype is not dtype:
            value = value.to(dtype)
        if value.untyped_storage().data_ptr() in taken:  # an output is nobody's view
            value = value.clone()
        taken.add(value.untyped_storage().data_ptr())
        out[output.name] = value
    return out


def _broadcast_to_kind(value: torch.Tensor, kind: Kind, shape: tuple[int, ...]) -> torch.Tensor:
    """The value as it is stored: vectors lose their axis of length 1."""
    if kind is Kind.COL:
        return value.expand(shape[0], 1)[:, 0].contiguous()
    if kind is Kind.ROW:
        return value.expand(1, shape[0])[0].contiguous()
    return value.expand(shape).contiguous()


def _node(
    e: Evaluation, program: EpilogueProgram, node: Node, tensors: Mapping[str, Any], values: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    if node.op == "acc":
        a, b = tensors["a"], tensors["b"]
        return _matmul(a.to(e.dtype), b.to(e.dtype)) if e.product is None else e.product(a, b).to(e.dtype)
    if node.op == "operand":
        return _load(e, program.operand(str(node.attr("name"))), tensors)
    args = []
    for i in node.args:
        x, t = values[i], program.nodes[i].type
        if t.kind is Kind.SEGMENT and node.type.kind is Kind.TILE:
            x = x.expand(e.m, t.columns(e.n)).repeat_interleave(t.size, 1)
        args.append(x)
    if OPS[node.op].primitive_class >= 4:  # reductions count every column, also of a value held as a broadcast
        args[0] = args[0].expand(e.m, program.nodes[node.args[0]].type.columns(e.n))
    elif node.op == "unpair":
        args[0] = args[0].expand(-1, program.nodes[node.args[0]].type.columns(e.n))
    return OPS[node.op].reference(e, *args, **dict(node.attrs))  # type: ignore[no-any-return]


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A full-precision product: TF32 is off whatever the process has set."""
    if not a.is_cuda:
        return a @ b
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        return a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _load(e: Evaluation, operand: Operand, tensors: Mapping[str, Any]) -> torch.Tensor:
    raw = tensors[operand.name]
    target = torch.int64 if operand.dtype is DType.INT else e.dtype
    x = raw.to(target) if isinstance(raw, torch.Tensor) else torch.tensor(raw, dtype=target, device=e.device)
    if operand.kind is Kind.COL:
        return x[:, None]
    if operand.kind is Kind.ROW:
        if operand.period:
            x = x.repeat(int(operand.width * e.n) // operand.period)
        return x[None]
    return x


def reference(
    program: EpilogueProgram,
    args: Sequence[Any],
    operands: Mapping[str, Any],
    dtype: torch.dtype | None,
    watch: Watch | None = None,
) -> dict[str, torch.Tensor]:
    """Outputs in `dtype` (fp64 if None), unrounded, in memory of their own. Arguments as in a call of the program, but of any
    dtype; raises what binding them by name raises, `ShapeMismatch`, and `DTypeUnsupported` for what is no tensor. `watch` as in
    `evaluate`."""
    tensors = arguments(program, args, operands)
    scalars = {o.name for o in program.operands if o.kind is Kind.SCALAR}
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor) and not (name in scalars and isinstance(x, (int, float))):
            expected = "a number or a 0-d tensor" if name in scalars else "a torch tensor"
            raise DTypeUnsupported(f"{program.name}: {name}", got=shown(x), expected=expected)
    m, n, _ = program.sizes({name: tuple(x.shape) for name, x in tensors.items() if isinstance(x, torch.Tensor)})
    program.check_sizes(n)
    for o in program.operands:  # nothing is broadcast, as in a call
        x = tensors[o.name]
        if isinstance(x, torch.Tensor) and tuple(x.shape) != o.shape(m, n):
            raise ShapeMismatch(f"{program.name}: {o.name}", got=tuple(x.shape), expected=o.shape(m, n))
    return evaluate(program, tensors, m=m, n=n, dtype=dtype or torch.float64, stored_as=None, watch=watch)
