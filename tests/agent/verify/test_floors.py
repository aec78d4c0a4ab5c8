"""The floor of a benchmark is the task's: whatever a kernel does besides, it counts for nothing."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import coda
from agent.keeping import measured
from agent.records import Status
from agent.task import Task, cards, load
from agent.verify import algebra, bench, entrants, floors
from agent.verify.blame import Blamed
from agent.verify.inputs import blank
from agent.verify.racing import DTYPE
from agent.verify.subject import Subject
from coda.bench import peers
from coda.bench.record import BenchRecord
from coda.bench.roofline import Floor, Rates
from coda.primitives import ColVector, column_index, columns, exp, row_logsumexp, select_column, where

pytestmark = pytest.mark.interp

ROOT = pathlib.Path(__file__).parents[3]
TWICE = load("cross_entropy_loss_and_gradient")
DIMS = {"M": 24, "N": 40, "K": 16}


@coda.epilogue
def _statistics(acc, target: ColVector(dtype="int"), dloss: ColVector):
    lse, counts = row_logsumexp(acc), (target >= 0) & (target < columns())
    return {"loss": where(counts, lse - select_column(acc, target), 0.0), "lse": lse}


@coda.epilogue
def _gradient(acc, target: ColVector(dtype="int"), dloss: ColVector, lse: ColVector):
    hit, counts = where(column_index() == target, 1.0, 0.0), (target >= 0) & (target < columns())
    return {"dlogits": where(counts, (exp(acc - lse) - hit) * dloss, 0.0)}


@coda.plan
def _recomputed(x, w, target, dloss):
    r = _statistics(x, w, target=target, dloss=dloss)
    return {"loss": r.loss, "dlogits": _gradient(x, w, target=target, dloss=dloss, lse=r.lse).dlogits}


def twice() -> Subject:
    """A kernel that computes its logits in two GEMMs and stores them never."""
    found = Subject(_recomputed.program, TWICE)
    assert found.gemms == 2
    assert algebra.check(found, seed=11).status is Status.PASS
    return found


def test_a_product_that_is_computed_twice_is_work_of_the_kernel_and_not_of_the_task() -> None:
    contest = bench.contest_of(TWICE, twice(), DIMS, entrants.Entrants(), 4e12)
    assert contest.flops == 2 * 24 * 40 * 16
    big = dict(TWICE.shapes_of("benchmark")[0].dims)
    assert floors.flops(TWICE, big) == 2 * big["M"] * big["N"] * big["K"]


def test_the_plain_gemm_beside_it_is_the_tasks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

    def build(name: str, setting: peers.Setting) -> dict[str, peers.Candidate]:
        seen.append((name, setting.gemms))
        return {name: peers.Candidate(lambda inputs: {})}

    monkeypatch.setattr(peers, "build", build)
    sets = entrants.sets_of(TWICE, DIMS, seed=3, device="cpu")
    subject = twice()
    payload = {"program": subject.program.to_json(), "schedule": None, "backends": ["reference"], "peers": ["eager"]}
    found = entrants.enter(TWICE, subject, sets, lambda at, out: None, payload)
    assert "cublas" in dict(seen), found.absent
    assert dict(seen)["cublas"] == ((24, 40, 16),)


def test_such_a_kernel_is_as_far_from_the_floor_as_its_time_says() -> None:
    """At the rate of the plain GEMM two products take twice as long as the floor: 50 %, not 100 %."""
    rate, dims = 8e14, {"M": 4096, "N": 32768, "K": 4096}
    floor = Floor.of_numbers(floors.flops(TWICE, dims), floors.traffic(TWICE, dims), Rates(rate, 4e12))
    assert floor.bound == "compute"
    assert floor.seconds / (2 * 2 * 4096 * 32768 * 4096 / rate) == pytest.approx(0.5)


@pytest.mark.parametrize("task_id", sorted(cards()))
def test_every_task_says_what_it_costs(task_id: str) -> None:
    """No more products than a kernel may have, and none where it may have none."""
    task = load(task_id)
    for shape in task.shapes:
        found = floors.gemms(task, blank(task, shape.dims, DTYPE))
        assert len(found) <= task.gemms
        assert bool(found) == bool(task.gemms)
        assert all(n in shape.dims.values() or n > 1 for gemm in found for n in gemm)
        assert floors.traffic(task, shape.dims) > 0


def with_reference(reference: Any) -> Task:
    return dataclasses.replace(load("bias_gelu"), reference=reference)


def test_products_are_found_however_they_are_spelled() -> None:
    def spelled(x: Tensor, w: Tensor, bias: Tensor) -> dict[str, Tensor]:
        one = torch.nn.functional.linear(x, w.mT, bias)
        two = torch.einsum("mk,kn->mn", x, w)
        three = torch.addmm(bias, x, w)
        four = (x.unflatten(0, (2, -1)) @ w).flatten(0, 1)
        five = x @ w[:, 0]
        return {"z": one + two + three + four, "h": five}

    found = floors.gemms(with_reference(spelled), blank(load("bias_gelu"), {"M": 4, "N": 6, "K": 10}, DTYPE))
    assert sum(2 * m * n * k for m, n, k in found) == 4 * 2 * 4 * 6 * 10 + 2 * 4 * 10


def test_a_reference_that_needs_values_is_the_tasks_fault() -> None:
    def looks(x: Tensor, w: Tensor, bias: Tensor) -> dict[str, Tensor]:
        return {"z": x @ w if float(x.sum()) > 0 else x, "h": x}

    with pytest.raises(Blamed, match="on sizes alone") as caught:
        floors.flops(with_reference(looks), {"M": 4, "N": 6, "K": 10})
    assert caught.value.status is Status.INVALID_SPEC


def test_traffic_and_elements_count_declared_tensors_once() -> None:
    m, n, k = 8, 16, 4
    sizes: Mapping[str, int] = {"M": m, "N": n, "K": k}
    moved = 2 * (m * k + k * n + 2 * m * n + 2 * m * n + m * n) + 4 * m
    assert floors.traffic(load("swiglu_backward"), sizes) == moved
    task, floats = load("gemm_cross_entropy"), m * k + k * n + m * n
    assert floors.elements(task, sizes) == floats + 3 * m
    assert floors.traffic(task, sizes) == 2 * floats + 8 * m + 2 * 4 * m


def committed() -> Iterator[BenchRecord]:
    paths = [
        *(ROOT / "examples_curated").glob("records/**/*.json"),
        *(ROOT / "authored_kernels").glob("*/*/bench/*.json"),
    ]
    for path in paths:
        for found in measured.of_file(path):
            assert isinstance(found, BenchRecord), (path, found)
            yield found


def test_every_committed_record_loads_and_has_the_floor_of_its_task() -> None:
    """Records from before floors were the task's have none other."""
    found = list(committed())
    assert len(found) > 100
    for record in found:
        task = load(record.task)
        assert record.floor.flops == floors.flops(task, record.dims), record.task
        assert record.floor.bytes == floors.traffic(task, record.dims), record.task
        again = Floor.of_numbers(
            record.floor.flops, record.floor.bytes, Rates(record.gemm_flops or 1.0, record.bandwidth)
        )
        assert record.floor.seconds == pytest.approx(again.seconds)
        assert json.loads(record.to_json())["task"] == task.id
