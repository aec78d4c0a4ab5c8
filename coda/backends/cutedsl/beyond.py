"""What the epilogue computes beyond the edge of the matrix, where accumulator and loaded tiles are filled with zeros.

    vanishing    nodes that are exactly 0 there, on any input: a sum of them needs no mask

A loaded vector is not filled, and a scalar may be infinite: whatever depends on them is unknown. A function of known
arguments is known to be finite if PyTorch says so, but 0 only where no rounding can make it anything else: sigmoid(0) - 1/2
is not taken for 0, sigmoid(0) * 0 is.
"""

from __future__ import annotations

import functools
from typing import Any

from coda.primitives.types import Kind
from coda.primitives.value import OPS, Node
from coda.program import EpilogueProgram

KEEP_ZERO = frozenset(
    "neg abs sign round floor ceil sqrt cast to_float add sub minimum maximum pair unpair".split()  # noqa: SIM905
)
"""Exactly 0 where every argument is."""


@functools.lru_cache(maxsize=512)
def vanishing(program: EpilogueProgram) -> frozenset[int]:
    """Nodes that are exactly 0 beyond the matrix."""
    import torch

    from coda.evaluate import Evaluation

    e = Evaluation(torch, 1, 1, torch.float32, torch.device("cpu"), rounds=False)
    values: dict[int, Any] = {}
    """What is known; finite."""
    zeros: set[int] = set()
    for i, node in enumerate(program.nodes):
        if node.op == "acc" or (node.op == "operand" and node.type.kind is Kind.TILE):
            values[i] = torch.zeros((1, 1), dtype=torch.int64 if node.type.dtype == "int" else e.dtype)
            zeros.add(i)
            continue
        value = _computed(e, node, [values[j] for j in node.args]) if _is_known(node, values) else None
        if value is not None:
            values[i] = value
            if _is_zero(node, zeros, values, value):
                zeros.add(i)
    return frozenset(zeros)


def _is_known(node: Node, values: dict[int, Any]) -> bool:
    """Whether it is a function of known numbers alone."""
    loaded = node.op in ("operand", "rows", "columns", "row_index", "column_index")
    return not loaded and OPS[node.op].primitive_class == 1 and all(j in values for j in node.args)


def _computed(e: Any, node: Node, args: list[Any]) -> Any:
    """The value, or None where it is infinite or NaN."""
    if node.op == "unpair":
        return args[0]
    if node.op == "pair":
        x, y = args
        return x if bool((x == y).all()) else None
    value = OPS[node.op].reference(e, *args, **dict(node.attrs))
    return value if bool(value.isfinite().all()) else None


def _is_zero(node: Node, zeros: set[int], values: dict[int, Any], value: Any) -> bool:
    """Whether the value is 0 whatever the functions before it round to."""
    if node.op == "const":
        return bool((value == 0).all())
    if node.op == "mul":
        return any(j in zeros for j in node.args)
    if node.op == "div":
        return node.args[0] in zeros and bool((values[node.args[1]].abs() > 1e-30).all())
    if node.op == "where":
        return all(j in zeros for j in node.args[1:])
    return node.op in KEEP_ZERO and all(j in zeros for j in node.args)
