"""Does a program take and return what the task says? Words, and messages that say what to change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import coda
from agent.records import Status
from agent.task import Input, Result, Task, load
from agent.verify import exploits
from agent.verify.subject import Mismatch, Subject, interface, load_task, task_ref
from coda.primitives import ColVector, RowVector, Tile, row_sum, select_column, sigmoid

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")


def mismatches(source: str, task: Task = SWIGLU) -> list[Mismatch]:
    space: dict[str, Any] = {}
    exec(compile(source, "kernel.py", "exec"), space)
    return interface(Subject(space["kernel"].program, task))


def of(kernel: Any, task: Task) -> list[Mismatch]:
    return interface(Subject.read(kernel.program.to_json(), task))


@pytest.mark.parametrize(
    ("old", "new", "status", "says"),
    [
        ('"zdz":', '"zd":', Status.WRONG_SHAPE, "output 'zdz' is missing"),
        (', "zdz": row_sum(g * dg + u * du)', "", Status.WRONG_SHAPE, "output 'zdz' is missing"),
        ("return {", 'return {"more": y, ', Status.WRONG_SHAPE, "no output 'more'"),
        ('"h": y * u', '"h": row_sum(y * u)', Status.WRONG_SHAPE, "output 'h'"),
        ('"h": y * u', '"h": pair(y, u)', Status.WRONG_SHAPE, "(M, N)"),
        ('"h": y * u', '"h": store(y * u, dtype="float32")', Status.WRONG_DTYPE, "without a dtype"),
        ("row_sum(g * dg + u * du)", 'store(row_sum(g * dg + u * du), dtype="bfloat16")', Status.WRONG_DTYPE, 'dtype="float32"'),
        ("z: Tile(width=2)", "zz: Tile(width=2)", Status.WRONG_SHAPE, "Tile(width=2)"),
        ("z: Tile(width=2)):", "z: Tile(width=2), *, eps: float = 1.0):", Status.WRONG_SHAPE, "remove the parameter"),
    ],
)  # fmt: skip
def test_what_differs_is_named_with_what_to_change(old: str, new: str, status: Status, says: str) -> None:
    source = exploits.HONEST.replace(old, new).replace("unpair(z)", "unpair(zz)" if "zz:" in new else "unpair(z)")
    found = mismatches(source)
    assert {m.status for m in found} == {status}
    assert any(says in m.message for m in found), found


def test_the_honest_interface_has_nothing_to_change() -> None:
    assert mismatches(exploits.HONEST) == []


def test_a_second_gemm_is_a_matter_of_policy() -> None:
    source = next(s.text for s in exploits.SOURCES if s.id == "X59c")
    (found,) = mismatches(source)
    assert found.status is Status.POLICY
    assert "2 GEMMs" in found.message


def linear(gemms: int = 1, **changes: Any) -> Task:
    inputs = (
        Input("x", ("M", "K"), role="a"), Input("w", ("K", "N"), draw="weight", role="b"), Input("bias", ("N",)),
        Input("target", ("M",), draw="index", dtype="int64"), Input("eps", (), default=0.5),
    )  # fmt: skip
    outputs = (Result("y", ("M", "N")), Result("t", ("M",), dtype="float32"))
    known: dict[str, Any] = {"inputs": inputs, "outputs": outputs, "gradient": None, "gemms": gemms}
    return dataclasses.replace(SWIGLU, id="linear", **{**known, **changes})


@coda.epilogue
def right(acc, bias: RowVector, target: ColVector, *, eps: float = 0.5):  # type: ignore[no-untyped-def]
    y = acc + bias * eps
    return {"y": y, "t": select_column(y, target)}


@coda.epilogue
def column_bias(acc, bias: ColVector, target: ColVector, *, eps: float = 0.5):  # type: ignore[no-untyped-def]
    y = acc + bias * eps
    return {"y": y, "t": select_column(y, target)}


@coda.epilogue
def float_target(acc, bias: RowVector, target: ColVector, *, eps: float = 0.5):  # type: ignore[no-untyped-def]
    return {"y": acc + bias * eps, "t": row_sum(acc) * target}


@coda.epilogue
def other_default(acc, bias: RowVector, target: ColVector, *, eps: float = 0.25):  # type: ignore[no-untyped-def]
    y = acc + bias * eps
    return {"y": y, "t": select_column(y, target)}


@coda.plan
def as_plan(x, w, bias, target, *, eps: float = 0.5):  # type: ignore[no-untyped-def]
    r = right(x, w, bias=bias, target=target, eps=eps)
    return {"y": r.y, "t": r.t}


@coda.pointwise
def without_gemm(x: Tile):  # type: ignore[no-untyped-def]
    return {"y": sigmoid(x), "t": row_sum(x)}


def test_vectors_scalars_and_integers() -> None:
    assert of(right, linear()) == []
    assert [(m.status, m.name) for m in of(column_bias, linear())] == [(Status.WRONG_SHAPE, "bias")]
    (default,) = of(other_default, linear())
    assert "`eps: float = 0.5`" in default.message
    wrong = of(float_target, linear())
    assert [(m.status, m.name) for m in wrong] == [(Status.WRONG_DTYPE, "target")]


def test_a_plan_takes_the_inputs_by_name() -> None:
    assert of(as_plan, linear()) == []
    assert (
        of(right, linear(inputs=tuple(dataclasses.replace(i, role="input") for i in linear().inputs)))[0].status
        is Status.WRONG_SHAPE
    )


def test_kinds_that_cannot_fit_say_which_does() -> None:
    (found,) = of(without_gemm, linear())[:1]
    assert "@coda.epilogue" in found.message
    swish = dataclasses.replace(linear(gemms=0), inputs=(Input("x", ("M", "N"), role="input"),))
    assert of(without_gemm, swish) == []
    assert of(right, swish)[0].status is Status.POLICY


def test_tasks_cross_a_process_border_by_name() -> None:
    assert load_task(task_ref(SWIGLU)).digest == SWIGLU.digest
