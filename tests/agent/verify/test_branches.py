"""Ways through a kernel: which were taken, how the others are reached, and what is said of those that cannot be."""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import pytest
import torch

import authored_kernels
import coda
from agent.records import Status
from agent.task import Task, load
from agent.verify import algebra, feedback, hidden_branches, probes
from agent.verify.branches import Branches
from agent.verify.judge import Options, judge
from agent.verify.selftest import in_process
from agent.verify.subject import Subject
from coda.kernel import Kernel
from coda.primitives import (
    ColVector,
    RowVector,
    Tile,
    floor,
    maximum,
    minimum,
    pair,
    relu,
    row_index,
    row_sum,
    segment_absmax,
    segment_sum,
    unpair,
    where,
)

pytestmark = pytest.mark.interp

GELU = load("bias_gelu")


def subject(text: str, task: Task = GELU) -> Subject:
    space: dict[str, Any] = {}
    exec(compile(text, "kernel.py", "exec"), space)
    return Subject(space["kernel"].program, task)


def watched(kernel: Kernel, **operands: Any) -> Branches:
    """A pointwise kernel after one run that counts."""
    branches = Branches(Subject(kernel.program, GELU))
    values, seen = branches.run(operands)
    assert values.keys() == {o.name for o in kernel.program.outputs}
    branches.count(seen)
    return branches


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


# what counts as taken ---------------------------------------------------------------------------------------------------


def test_a_side_that_no_element_took_is_named() -> None:
    @coda.pointwise
    def kernel(z: Tile):
        return {"h": where(z > 100, 7.0, z) + maximum(z, -90) + minimum(z, 2.0)}

    assert watched(kernel, z=row(1, 3)).untested() == ["`z > 100` was never true", "`max(z, -90)` never gave `-90`"]
    assert watched(kernel, z=row(1, 101, 3, -91)).untested() == []


def test_the_branch_that_is_thrown_away_does_not_count() -> None:
    @coda.pointwise
    def kernel(z: Tile):
        return {"h": where(z > 100, where(z < 101, 7.0, z), z)}

    assert watched(kernel, z=row(1, 200)).untested() == ["`z < 101` was never true"]
    assert watched(kernel, z=row(1, 200, 100.5)).untested() == []


def test_both_conditions_of_a_conjunction_must_decide_it() -> None:
    @coda.pointwise
    def kernel(z: Tile):
        return {"h": where((z > 100) & (z < 101), 7.0, z)}

    found = watched(kernel, z=row(1, 200)).untested()
    assert "`(z > 100) ∧ (z < 101)` was never true" in found
    assert len(found) == 3  # neither condition was true where the other one was
    assert watched(kernel, z=row(1, 200, 100.5)).untested() == []


def test_what_is_multiplied_by_anothers_zero_does_not_count_but_a_square_of_zero_does() -> None:
    @coda.pointwise
    def window(z: Tile):
        return {"h": z + where(z > 100, 1.0, 0.0) * where(z < 101, 1.0, 0.0)}

    assert "`z > 100` was never true" in watched(window, z=row(1, 200)).untested()
    assert watched(window, z=row(1, 200, 100.5)).untested() == []

    @coda.pointwise
    def squared(z: Tile):
        return {"h": relu(z) * relu(z)}

    assert watched(squared, z=row(-1, 2)).untested() == []


def test_pairs_segments_and_vectors_are_followed_to_their_columns() -> None:
    @coda.pointwise
    def pairs(z: Tile(width=2), c: ColVector):
        even, odd = unpair(z)
        hidden = where(odd > 10, 1.0, 2.0)
        return {"h": pair(even, where(c > 0, hidden, even))}

    both = torch.tensor([[1.0, 20.0, 1.0, 1.0], [1.0, 20.0, 1.0, 20.0]], dtype=torch.float64)
    found = watched(pairs, z=both, c=torch.tensor([-1.0, 1.0], dtype=torch.float64)).untested()
    assert found == ["`z[1::2] > 10` was never false"]  # the 1.0 stands in the row that is thrown away

    @coda.pointwise
    def segments(z: Tile):
        largest = segment_absmax(z, 2)
        return {"h": where(z > 5, where(largest > 9, 1.0, 0.0), z) + segment_sum(maximum(z, -3.0), 2)}

    found = watched(segments, z=row(6, 1, 2, 10, 6, 10)).untested()
    assert found == ["`max(z, -3)` never gave `-3`"]
    found = watched(segments, z=row(1, 1, 2, 10, 6, 10)).untested()
    assert "`max |·|_{j in group of 2} z > 9` was never false" in found

    @coda.pointwise
    def stepped(z: Tile, r: RowVector):
        return {"s": row_sum(z), "h": z + where(floor(r / 8) > 0, 1.0, 2.0) * (row_index() % 4)}

    found = watched(stepped, z=torch.ones(3, 2, dtype=torch.float64), r=row(1, 2)[0]).untested()
    assert "`⌊(r / 8)⌋` was always 0" in found
    assert "`i mod 4` was always i" in found
    assert watched(stepped, z=torch.ones(5, 2, dtype=torch.float64), r=row(1, 9)[0]).untested() == []


def test_choices_of_every_call_of_a_plan_are_apart() -> None:
    @coda.pointwise
    def clipped(z: Tile):
        return {"h": minimum(z, 10.0)}

    @coda.plan
    def kernel(z):
        return {"h": clipped(clipped(z).h).h}

    branches = Branches(Subject(kernel.program, GELU))
    branches.count(branches.run({"z": row(1, 20)})[1])
    assert len(branches.keys) == 2
    assert branches.untested() == ["`min(z, 10)` never gave `10`"]  # of the second call, whose z is 10 at most


def test_a_run_is_what_the_reference_gives_and_a_large_one_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    found = subject(hidden_branches.GELU.replace("HERE", "where(z > 0, y, y)"))
    inputs = algebra.draws.draw(GELU, {"M": 4, "N": 6, "K": 5}, seed=1)
    values, seen = Branches(found).run(inputs)
    right = found.reference(inputs)
    assert all(torch.equal(values[n], right[n]) for n in right)
    assert {side for _, side in seen.sides} == {True, False}
    monkeypatch.setattr("agent.verify.branches.WATCHED", 10)
    assert Branches(found).run(inputs)[1].sides == set()


# probes -----------------------------------------------------------------------------------------------------------------


def test_an_edge_is_both_neighbouring_doubles_and_the_number_itself() -> None:
    branches = Branches(subject(hidden_branches.GELU.replace("HERE", "where(z > 0.123, y, y)")))
    found = list(probes.edges(branches, GELU, 3))
    assert {p.kind for p in found} == {"edge"}
    for probe in found:
        branches.count(branches.run(probe.inputs)[1])
    assert branches.untested() == []
    zs = [(p.inputs["x"] @ p.inputs["w"] + p.inputs["bias"]) for p in found]
    assert any(bool((z == 0.123).any()) for z in zs)
    assert any(bool(((z != 0.123) & ((z - 0.123).abs() < 1e-12)).any()) for z in zs)


def test_a_program_that_never_turns_has_no_edges() -> None:
    assert list(probes.edges(Branches(subject(hidden_branches.GELU.replace("HERE", "z * z"))), GELU, 3)) == []


@pytest.mark.parametrize("x", [0.0, 5e-324, 1.0, 1e308, -1e-300, -2.5, -5e-324])
def test_doubles_are_numbered_in_order(x: float) -> None:
    at = probes._ordinal(x)
    assert probes._double(at) == x
    assert probes._double(at - 1) < x < probes._double(at + 1)
    assert all(probes._ordinal(a) < probes._ordinal(b) for a, b in itertools.pairwise((-2.0, -1.0, 0.0, 1e-9, 3.0)))


def test_probes_keep_what_a_draw_promises() -> None:
    task = load("rms_rope")
    for probe in probes.ladder(task, 5):
        assert bool((probe.inputs["rstd"] > 0).all())
        assert float(probe.inputs["cos_sin"].abs().max()) <= 1


def test_rows_are_zeroed_of_what_has_rows() -> None:
    assert torch.equal(probes._zero_rows(torch.ones(3)), torch.tensor([1.0, 0.0, 1.0]))
    assert torch.equal(probes._zero_rows(torch.tensor(2.0)), torch.tensor(2.0))


def test_a_number_is_given_other_values_than_its_default() -> None:
    task = load("residual_rms_linear")
    given = [probe.inputs["eps"] for probe in probes.numbers(task, 5)]
    assert len(set(given)) == len(given) == 3
    assert 1e-6 not in given
    assert not list(probes.numbers(GELU, 5))


def test_an_index_is_outside_in_every_way_whatever_the_program_names() -> None:
    task = load("cross_entropy_smoothing")
    (text,) = (s.text for s in hidden_branches.BRANCHES if s.id == "X98u")  # which names -77
    held: set[int] = set()
    for probe in probes.integers(Branches(subject(text, task)), task, 5):
        held |= set(probe.inputs["target"].tolist())
        n = probe.dims["N"]
    assert {-78, -77, -76, -1, 0, n - 1, n, -n, 2 * n, 1 << 20, -(1 << 20)} <= held


def test_a_plan_that_ignores_a_number_is_refused() -> None:
    path = pathlib.Path(authored_kernels.__file__).parent / "residual_rms_linear" / "claude" / "kernel.py"
    text = path.read_text()
    task = load("residual_rms_linear")
    assert "eps=eps" in text
    assert algebra.check(subject(text, task), seed=1).status is Status.PASS
    assert algebra.check(subject(text.replace("eps=eps", "eps=1e-6"), task), seed=1).status is Status.WRONG_VALUES


def test_a_guard_against_zero_is_reached_where_the_task_has_one_too() -> None:
    found = algebra.check(
        subject(
            """
import coda
from coda.primitives import cast, maximum, segment_absmax, store

@coda.epilogue
def kernel(acc):
    scale = maximum(segment_absmax(acc, 128), 1e-12) / 448.0
    return {"q": store(acc / scale, dtype="float8_e4m3fn"), "scale": scale}
""",
            load("fp8_block_scale"),
        ),
        seed=5,
    )
    assert (found.status, found.untested) == (Status.PASS, [])


# the gate ---------------------------------------------------------------------------------------------------------------


def test_a_loss_that_fp64_cannot_tell_from_zero_is_no_mistake() -> None:
    """The reference subtracts two numbers of 30 and is the less right of the two; another formula is still refused."""
    task = load("cross_entropy_loss_and_gradient")
    inputs = {
        "x": torch.full((1, 1), 30.0, dtype=torch.float64),
        "w": torch.tensor([[1.0, -0.15]], dtype=torch.float64),
        "target": torch.tensor([0]),
        "dloss": torch.ones(1, dtype=torch.float64),
    }
    right = algebra.reference(task, inputs)
    loss = torch.log1p(torch.exp(torch.tensor([-30.0 * 1.15], dtype=torch.float64)))
    better = {"loss": loss, "dlogits": torch.stack([torch.expm1(-loss), -torch.expm1(-loss)], 1)}
    assert not all(c.ok for c in algebra.compare(better, right).values())
    assert all(c.ok for c in algebra.settled(task, inputs, better, right, seed=1).values())
    wrong = {**better, "loss": loss + 1e-10}
    assert not algebra.settled(task, inputs, wrong, right, seed=1)["loss"].ok


def test_a_jump_of_the_reference_may_be_met_from_either_side() -> None:
    """Where a gradient jumps at 0, >= is as right as >; a value of its own there is not even looked for by a smooth task."""
    text = """
import coda
from coda.primitives import RowVector, relu, where

@coda.epilogue
def kernel(acc, bias: RowVector):
    z = acc + bias
    return {"z": z, "h": where(z >= 0, z * z, 0.0 * z)}
"""
    for seed in range(2):
        assert algebra.check(subject(text, load("bias_squared_relu")), seed=seed).status is Status.PASS


def test_what_no_input_reached_is_told_to_everybody_who_reads_the_verdict() -> None:
    source = next(s for s in hidden_branches.BRANCHES if s.id == "X98q")
    verdict = judge(source.text, GELU, options=Options(gates=("static", "trace", "algebra")), call=in_process)
    gate = verdict.gate("algebra")
    assert gate.status is Status.PASS
    assert gate.reason == "untested: `M·N = 77777` was never true"
    assert gate.evidence["untested"] == ["`M·N = 77777` was never true"]
    assert gate.evidence["probes"] > 20  # type: ignore[operator]
    told = feedback.digest(verdict)
    assert "untested: `M·N = 77777` was never true" in told.findings


def test_a_kernel_that_overflows_early_is_told_its_limit() -> None:
    text = hidden_branches.GELU.replace("HERE", "y + 0 * exp(0.01 * z * z)")
    found = algebra.check(subject(text), seed=2)
    assert found.status is Status.PASS
    assert found.limits.keys() == {"h"}
    assert any("'h' is not finite where the reference is" in text for text in algebra.unseen(found))


def test_the_author_hears_under_which_values_it_was_wrong() -> None:
    source = next(s for s in hidden_branches.BRANCHES if s.id == "X98b")
    verdict = judge(source.text, GELU, options=Options(gates=("static", "trace", "algebra")), call=in_process)
    assert "values next to a constant of the kernel" in feedback.digest(verdict).text
    assert "0.123" not in feedback.digest(verdict).text
