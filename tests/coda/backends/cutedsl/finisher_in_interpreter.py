"""Run by `test_finish.py` with TRITON_INTERPRET=1: prints the largest relative error of every vector output as JSON."""

from __future__ import annotations

import json
import math

import torch

import examples_curated
from coda.backends.cutedsl import finish
from coda.backends.finishing.anatomy import Anatomy
from coda.evaluate import evaluate
from coda.primitives import (
    ColVector,
    RowVector,
    col_mean,
    col_sum,
    row_absmax,
    row_logsumexp,
    row_max,
    row_mean,
    row_sum,
    select_column,
)
from coda.problem import Problem
from coda.tracing import signature, trace

M, N, K, TILE_M, TILE_N = 70, 104, 16, 32, 48


def special(acc, t: ColVector, r: RowVector):
    """Infinities, NaN, every fold, several statistics of both axes."""
    y = acc / r  # r has zeros
    return {
        "lse": row_logsumexp(y),
        "top": row_max(acc),
        "amax": row_absmax(acc),
        "mean": row_mean(acc * acc),
        "sum": row_sum(acc) * 2,
        "picked": select_column(y, t),
        "c": col_sum(acc),
        "d": col_mean(acc * acc) + r,
    }


def copies(acc, r: RowVector):
    """A vector without a statistic: there is no workspace."""
    return {"y": acc * r, "r2": r * 2}


def partial(fold, x, dim):
    if fold == "sum":
        return x.sum(dim)
    if fold == "logsumexp":
        return x.logsumexp(dim)
    x = x.abs() if fold == "absmax" else x
    return torch.where(x.isnan(), -math.inf, x).amax(dim)


def compare(name, program, errors, tile_n=TILE_N):
    problem = Problem.example(program, m=M, n=N, k=K, dtype="float16")
    g = torch.Generator().manual_seed(3)
    tensors = {"a": torch.randn(M, K, generator=g), "b": torch.randn(K, N, generator=g)}
    for o in program.operands:
        if o.kind == "scalar":
            tensors[o.name] = torch.tensor(o.default)  # the interpreter takes tensors alone
        elif o.dtype == "int":
            tensors[o.name] = torch.randint(-9, N + 9, (M,), generator=g)
        else:
            tensors[o.name] = torch.randn(o.shape(M, N), generator=g)
            if name == "special":
                tensors[o.name][5] = 0.0
    expected = evaluate(program, tensors, m=M, n=N, dtype=torch.float64, stored_as=None)
    anatomy = Anatomy(program)
    slots, tiles_m = -(-N // tile_n), -(-M // TILE_M)
    partials = finish.Partials(anatomy, M, N, slots, tiles_m)
    workspace = torch.full((partials.size,), math.nan)
    for s in anatomy.statistics:
        value = source(program, s.source, tensors)
        shape, strides, start = partials.place(s)
        place = workspace.as_strided(shape, strides, start)
        if s.fold == "select":
            index = tensors[str(program.nodes[s.index].attr("name"))]
            inside = (index >= 0) & (index < N)
            place[inside] = value.gather(1, torch.where(inside, index, 0)[:, None])[inside, 0].float()
        elif s.fold == "moments":
            for slot in range(slots):
                part = value[:, slot * tile_n : (slot + 1) * tile_n]
                place[:, slot] = part.mean(1).float()
                place[:, slots + slot] = (part - part.mean(1, keepdim=True)).square().sum(1).float()
        elif s.axis == "row":
            for slot in range(slots):
                place[:, slot] = partial(s.fold, value[:, slot * tile_n : (slot + 1) * tile_n], 1).float()
        else:
            for tile in range(tiles_m):
                place[tile] = partial(s.fold, value[tile * TILE_M : (tile + 1) * TILE_M], 0).float()
    outputs = {f"out.{o.name}": torch.full(program.output_shape(o.name, M, N), math.nan) for o in program.outputs}
    found = finish.make(program, problem, slots, tiles_m, tile_n)
    assert found is not None
    found.run({**tensors, **outputs}, workspace if partials.size else None)
    for o in anatomy.vector_outputs:
        x, y = outputs[f"out.{o.name}"].double(), expected[o.name]
        assert torch.equal(x.isnan(), y.isnan()), (name, o.name, x, y)
        assert torch.equal(x.isinf(), y.isinf()), (name, o.name, x, y)
        finite = y.isfinite()
        errors[f"{name}.{o.name}"] = float(((x - y).abs() / (y.abs() + 1))[finite].max()) if finite.any() else 0.0


def source(program, node, tensors):
    """The value of one node, in fp64."""
    from coda.program import Output

    tile = Output("value", node)
    lone = type(program)(program.name, program.kind, program.operands, program.nodes, (tile,), program.fast_math)
    return evaluate(lone, tensors, m=M, n=N, dtype=torch.float64, stored_as=None)["value"]


def main():
    errors = {}
    for name in ("residual_rms", "residual_layernorm", "softcap_cross_entropy", "gemm_cross_entropy", "rms_backward"):
        compare(name, examples_curated.load(name).program, errors)
    compare("many slots", examples_curated.load("residual_layernorm").program, errors, tile_n=3)
    compare("special", trace(special, signature(special, "epilogue"), dtypes={"t": "int"}), errors)
    compare("copies", trace(copies, signature(copies, "epilogue")), errors)
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
