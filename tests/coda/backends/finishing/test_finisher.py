"""The finisher's text and what it takes, and that both backends' texts stand on the shared room and on their own alone."""

from __future__ import annotations

import re

import pytest

from coda.backends.finishing.anatomy import Anatomy
from coda.backends.finishing.finisher import Finisher, sections
from coda.primitives import (
    ColVector,
    RowVector,
    Scalar,
    Tile,
    col_sum,
    row_logsumexp,
    row_mean,
    row_moments,
    row_sum,
    rsqrt,
    select_column,
)
from coda.problem import Problem
from coda.tracing import signature, trace

pytestmark = pytest.mark.null


def program(f, **dtypes):
    return trace(f, signature(f, "epilogue"), dtypes=dtypes)


def kernel(f, *, overlapped=False, slot=None, **dtypes):
    p = program(f, **dtypes)
    return Finisher(Anatomy(p), Problem.example(p, m=64, n=96, k=32), native_fp8=True, slot=slot).kernel(overlapped)


def loss(acc, t: ColVector, x: Tile, s: Scalar, *, eps: float = 1e-6):
    """One of each: a tile that the finisher does not read, a vector and scalars that it does."""
    return {"y": acc + x, "loss": (row_logsumexp(acc) - select_column(acc, t)) * s, "rstd": rsqrt(row_mean(acc) + eps)}


def copies(acc, r: RowVector, c: ColVector):
    """Vectors without a statistic."""
    return {"y": acc * r * c, "r2": r * 2, "c2": c + 1}


def moments(acc):
    mean, variance = row_moments(acc)
    return {"mean": mean, "variance": variance}


def test_a_finisher_takes_what_it_reads_and_writes():
    lines, arguments = kernel(loss, t="int")
    names = [a.name for a in arguments]
    assert names == [
        *("t_ptr", "s_arg", "eps_arg", "loss_out", "rstd_out"),
        *("partials", "tiles_m", "tiles_n", "M", "N"),
    ]
    assert lines[0] == '@triton.jit(do_not_specialize=["s_arg", "eps_arg"])'
    assert lines[1] == f"def finish_kernel({', '.join(names)}):"
    body = "\n".join(lines[2:])
    assert all(re.search(rf"\b{name}\b", body) for name in names if name not in ("tiles_m", "N"))
    assert not re.search(r"\b(x_ptr|y_out|acc)\b", body)


def test_without_a_statistic_there_are_no_partials():
    lines, arguments = kernel(copies)
    assert [a.name for a in arguments] == ["r_ptr", "c_ptr", "r2_out", "c2_out", "M", "N"]
    assert not any("partials" in line or "tiles_" in line for line in lines)


def test_it_waits_for_the_tiles_first_where_it_is_launched_early():
    (late, _), (early, _) = kernel(loss, t="int"), kernel(loss, overlapped=True, t="int")
    assert early[2].startswith("    gdc_wait()")
    assert early[:2] + early[3:] == late


def test_moments_count_the_columns_of_a_slot():
    text = "\n".join(kernel(moments, slot=48)[0])
    assert len(re.findall(r"mean_0, variance_0 = combine_moments\(.*, N, 48\)", text)) == 1  # both from one walk


def test_programs_of_a_launch_cover_every_vector():
    def f(acc, z: Tile(width=2)):
        return {"rows": row_sum(acc), "again": row_mean(acc), "columns": col_sum(acc), "wide": col_sum(z)}

    anatomy = Anatomy(program(f))
    assert sections(anatomy, 33, 64) == 2 + 2 + 4
    assert sections(anatomy, 0, 64) == 2 + 4


def texts():
    """A module of each fused backend, with a finisher."""
    from coda.backends.cutedsl import finish
    from coda.backends.triton.template import generate
    from coda.problem import Schedule

    p = program(loss, t="int")
    problem = Problem.example(p, m=64, n=96, k=32, dtype="float16", arch="sm_90")
    yield "triton", generate(p, problem, Schedule(), "sm_90", False).text
    yield "cutedsl", finish.text_of(p, problem, 128, overlapped=True)[0]


def test_generated_texts_import_the_shared_room_and_their_own_backend():
    pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)
    for backend, text in texts():
        rooms = set(re.findall(r"^from coda\.backends\.(\w+)", text, re.MULTILINE))
        assert "finishing" in rooms
        assert rooms <= {"finishing", backend}, (backend, rooms)
