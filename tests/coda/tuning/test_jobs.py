"""What is tuned is what a call runs: the same program, compile-time constants and integers included, at the same dtypes."""

from __future__ import annotations

import pytest
import torch

import coda
from coda.primitives import ColVector, RowVector, Tile, select_column
from coda.tuning import Job, jobs

pytestmark = pytest.mark.interp


@coda.epilogue
def repeated(acc, z: Tile, gamma: RowVector, *, n: int = 1):
    for _ in range(n):
        acc = acc + z * gamma
    return {"h": acc}


@coda.epilogue
def scaled(acc, scale: ColVector):
    return {"y": acc * scale}


@coda.pointwise
def chosen(x: Tile, at: ColVector):
    return {"c": select_column(x, at)}


@coda.plan
def doubled(a, b, scale):
    return {"y": scaled(a, b, scale=scale * 2.0).y}


def ran(monkeypatch: pytest.MonkeyPatch, call: object) -> list[Job]:
    """The programs and problems that a call compiles."""
    import coda.call

    seen = []
    choose = coda.call.choose
    monkeypatch.setattr(coda.call, "choose", lambda p, q, *more: seen.append(Job(p, q)) or choose(p, q, *more))
    call()  # type: ignore[operator]
    return seen


@pytest.mark.parametrize("n", [1, 3])
def test_compile_time_constants(monkeypatch, n):
    arguments = {"z": torch.ones(4, 8), "gamma": torch.ones(8), "n": n}
    a, b = torch.ones(4, 6), torch.ones(6, 8)
    (job,) = jobs(repeated, a, b, **arguments)
    assert job.program.digest == repeated.specialise(constants={"n": n} if n != 1 else {}).digest
    assert arguments["n"] == n
    assert [job] == ran(monkeypatch, lambda: repeated(a, b, **arguments))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_vectors_of_a_plan_have_the_dtype_that_they_have_in_a_call(monkeypatch, dtype):
    arguments = [torch.ones(shape, dtype=dtype) for shape in ((4, 6), (6, 8), (4,))]
    found = jobs(doubled, *arguments)
    assert [(j.program.digest, j.problem) for j in found] == [
        (j.program.digest, j.problem) for j in ran(monkeypatch, lambda: doubled(*arguments))
    ]
    assert found[0].problem.spec("scale").dtype == ("float64" if dtype == torch.float64 else "float32")


def test_integers(monkeypatch):
    x, at = torch.ones(4, 8), torch.zeros(4, dtype=torch.int64)
    assert jobs(chosen, x, at) == ran(monkeypatch, lambda: chosen(x, at))
