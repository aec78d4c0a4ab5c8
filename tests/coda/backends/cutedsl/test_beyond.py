"""What is claimed to be 0 beyond the matrix is 0 there, whatever the vectors hold; what might not be is not claimed."""

from __future__ import annotations

import math

import pytest
import torch

import coda
import examples_curated
from coda.evaluate import evaluate
from coda.primitives import RowVector, Scalar, Tile, exp, gelu, pair, relu, row_sum, sigmoid, unpair, where
from coda.program import Output

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
from coda.backends.cutedsl import beyond

pytestmark = pytest.mark.interp

SUITE = [
    program
    for id_ in examples_curated.catalog()
    if hasattr(program := examples_curated.load(id_).program, "nodes") and program.kind == "epilogue"
]


def claimed(f) -> bool:
    """Whether the one thing that is summed is claimed to be 0."""
    program = coda.epilogue(f).program
    (total,) = [node for node in program.nodes if node.op == "row_sum"]
    return total.args[0] in beyond.vanishing(program)


@pytest.mark.parametrize("program", SUITE, ids=lambda p: p.name)
def test_claims_hold_on_any_vectors(program):
    m, n, k = 4, 3840, 2  # n: a multiple of every period and segment in the bank
    tensors = {"a": torch.zeros(m, k), "b": torch.zeros(k, n)}
    for o in program.operands:
        if o.kind == "scalar":
            tensors[o.name] = math.inf if o.dtype == "float" else 3
        elif o.kind == "tile":
            tensors[o.name] = torch.zeros(o.shape(m, n), dtype=torch.int64 if o.dtype == "int" else torch.float32)
        elif o.dtype == "int":
            tensors[o.name] = torch.full(o.shape(m, n), 77)
        else:
            tensors[o.name] = torch.full(o.shape(m, n), math.nan)
    for i in sorted(beyond.vanishing(program)):
        if program.nodes[i].type.kind == "tile" and program.nodes[i].type.dtype == "float":
            lone = type(program)(program.name, program.kind, program.operands, program.nodes, (Output("v", i),), False)
            value = evaluate(lone, tensors, m=m, n=n, dtype=torch.float32, stored_as=None)["v"]
            assert torch.equal(value, torch.zeros_like(value)), (i, program.nodes[i])


def test_what_vanishes():
    def squares(acc, x: Tile):
        return {"s": row_sum((acc + x) * (acc + x))}

    def gated(acc, z: Tile(width=2)):
        g, u = unpair(z)
        return {"s": row_sum(acc * u * sigmoid(g))}

    def relus(acc):
        return {"s": row_sum(where(acc > 0, acc, 0.0) + relu(acc) + gelu(acc))}

    assert claimed(squares)
    assert claimed(gated)
    assert claimed(relus)


def test_what_may_not_vanish():
    def weighted(acc, w: RowVector):
        return {"s": row_sum(acc * w)}  # 0 · NaN

    def scaled(acc, eps: Scalar):
        return {"s": row_sum(acc * eps)}

    def ones(acc):
        return {"s": row_sum(exp(acc))}

    def rounded(acc):
        return {"s": row_sum(sigmoid(acc) - 0.5)}

    def divided(acc, x: Tile):
        return {"s": row_sum(acc / x)}

    def paired(acc):
        return {"s": row_sum(pair(acc, acc + 1.0))}

    for f in (weighted, scaled, ones, rounded, divided, paired):
        assert not claimed(f), f.__name__
