"""Operations that their surroundings make cheaper: which are found, which must not be, and that they mean the same."""

from __future__ import annotations

import math

import pytest
import torch

from coda.backends.finishing.cheaper import cheaper, signs
from coda.primitives import ColVector, Tile, abs, exp, maximum, minimum, sigmoid, sqrt, where
from coda.tracing import signature, trace

pytestmark = pytest.mark.null


def traced(f):
    return trace(f, signature(f, "epilogue"))


def ops(f, fast=False):
    nodes = traced(f).nodes
    return [cheaper(nodes, node, fast).op for node in nodes]


EXPONENTS = {
    "half a square": (lambda x, z, v: -0.5 * z * z, True),
    "a square first": (lambda x, z, v: (z * z) * -0.5, True),
    "a square over two": (lambda x, z, v: -(z * z) / 2, True),
    "away from a col": (lambda x, z, v: -abs(z - v), True),
    "at most zero": (lambda x, z, v: minimum(x, 0.0), True),
    "a sum of both": (lambda x, z, v: minimum(x, 0.0) - sqrt(z) * 2.0, True),
    "chosen": (lambda x, z, v: where(x > 0, -x * x, -abs(x)), True),
    "of tanh GELU": (lambda x, z, v: -1.6 * minimum(abs(z), 50.0) * (1.0 + 0.044 * (z * z)), True),
    "a cube": (lambda x, z, v: -z * z * z, False),
    "of two values": (lambda x, z, v: -0.5 * z * x, False),
    "a positive square": (lambda x, z, v: 0.5 * z * z, False),
    "a difference": (lambda x, z, v: abs(x) - abs(z), False),
    "at least zero": (lambda x, z, v: maximum(x, 0.0), False),
    "one of them may be positive": (lambda x, z, v: where(x > 0, -abs(x), z), False),
    "a value": (lambda x, z, v: x, False),
}


@pytest.mark.parametrize("name", EXPONENTS)
def test_exponents_that_are_never_positive(name):
    exponent, found = EXPONENTS[name]

    def f(acc, z: Tile, v: ColVector):
        return {"y": exp(exponent(acc, z, v))}

    assert ("exp_nonpositive" in ops(f)) is found
    assert "exp_nonpositive" not in ops(f, fast=True)  # fewer instructions than that already


@pytest.mark.parametrize("name", EXPONENTS)
def test_signs_hold_for_numbers(name):
    """What is said of a sign is so, for operands of every sign and magnitude."""
    exponent, _ = EXPONENTS[name]

    def f(acc, z: Tile, v: ColVector):
        return {"y": exponent(acc, z, v) + 0.0 * acc}

    program = traced(f)
    root = program.nodes[program.outputs[0].node].args[0]
    never_negative, never_positive = signs(program.nodes, root)
    x, z, v = torch.randn(3, 10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    names = {"acc": x, "z": z, "v": v}
    values = []
    for node in program.nodes:
        args = [values[i] for i in node.args]
        values.append(
            torch.tensor(node.attr("value"), dtype=torch.float64)
            if node.op == "const"
            else names[str(node.attr("name"))]
            if node.op == "operand"
            else x
            if node.op == "acc"
            else MEANING[node.op](*args)
        )
    value = values[root][values[root].isfinite()]
    assert not never_negative or bool((value >= 0).all())
    assert not never_positive or bool((value <= 0).all())


MEANING = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "gt": torch.gt,
    "where": torch.where,
}


def test_constants_over_values():
    def f(acc, v: ColVector):
        return {
            "y": 1.0 / (1.0 + acc),
            "z": -3.0 / acc,
            "w": acc / 3.0,
            "u": 1e30 / acc,
            "t": acc / v,
            "s": acc * (1.0 / v),
        }

    found = ops(f)
    assert found.count("reciprocal") == 2  # not of a col alone: once per row is no cost
    assert found.count("div") == 4


def test_a_scaled_sum_is_one_operation_and_the_same_number():
    def f(acc):
        return {
            "y": 0.5 * (1.0 + sigmoid(acc)),
            "z": (acc + 3.0) * -0.25,
            "w": 0.3 * (1.0 + acc),
            "u": 0.5 * (acc + acc),
        }

    nodes = traced(f).nodes
    found = [c for node in nodes if (c := cheaper(nodes, node, False)).op == "scaled"]
    assert [(c.attr("scale"), c.attr("shift")) for c in found] == [(0.5, 0.5), (-0.25, -0.75)]
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    for scale, shift in ((0.5, 0.5), (-0.25, -0.75)):
        once = (x.double() * scale + shift).float()  # exact, then rounded once, as an fma
        assert torch.equal(once, (x + shift / scale) * scale)


def test_ints_and_vectors_are_left_alone():
    def f(acc, v: ColVector):
        return {"y": acc * exp(-abs(v)), "z": acc + 1.0 / (2.0 + v) * math.pi}

    assert not {"exp_nonpositive", "reciprocal", "scaled"} & set(ops(f))
