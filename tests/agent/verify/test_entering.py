"""Who gets into a race: peers and configurations of the test's own, and kernels as users call them."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from agent.records import Status
from agent.task import load
from agent.verify import entrants, exploits, racing
from agent.verify.blame import Blamed
from agent.verify.inputs import draw
from agent.verify.runner import own
from agent.verify.subject import Subject
from coda.bench import peers
from coda.kernel import from_json
from coda.problem import Schedule
from coda.program import EpilogueProgram

pytestmark = pytest.mark.interp

SWIGLU = load("swiglu_backward")


def subject(source: str = exploits.HONEST) -> Subject:
    space: dict[str, Any] = {}
    exec(builtins.compile(source, "kernel.py", "exec"), space)
    return Subject(space["kernel"].program, SWIGLU)


def candidates(**runs: Callable[[Mapping[str, Any]], Any]) -> dict[str, peers.Candidate]:
    return {name: peers.Candidate(run) for name, run in runs.items()}


def entered(
    monkeypatch: pytest.MonkeyPatch, built: Mapping[str, Mapping[str, peers.Candidate]], **payload: Any
) -> entrants.Entrants:
    """Peers of the test's own on a task whose output is twice its input."""
    monkeypatch.setattr(peers, "build", lambda name, setting: built[name])
    monkeypatch.setattr(peers, "lineup", lambda *_, **__: [peers.Entry(peers.PEERS[n], "ready") for n in built])
    x = torch.ones(4)
    check: racing.Check = lambda at, out: None if torch.equal(out["y"], x * 2) else "output 'y'"  # noqa: E731
    found = entrants.Entrants(absent=dict(payload.get("excluded", {})))
    entrants._peers(
        found, SWIGLU, peers.Setting("t", lambda **_: {}, {"x": x}), [{"x": x}], check, payload.get("peers", ())
    )
    return found


def double(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {"y": inputs["x"] * 2}


def fails(inputs: Mapping[str, Any]) -> Any:
    raise RuntimeError("no kernel image")


def test_a_peer_whose_output_is_wrong_does_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = candidates(liger=lambda inputs: {"y": inputs["x"] * 3})
    ceiling = candidates(cublas=lambda inputs: {"product": inputs["x"]})
    found = entered(monkeypatch, {"eager": candidates(eager=double), "liger": wrong, "cublas": ceiling})
    assert list(found.others) == ["eager"]
    assert found.absent == {"liger": "wrong: output 'y'"}
    assert found.ceiling is not None  # it computes less than the task


def test_a_configuration_that_fails_loses_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    built = {"quack": candidates(**{"quack[a]": fails, "quack[b]": double}), "liger": candidates(liger=fails)}
    found = entered(monkeypatch, built)
    assert found.peer_of == {"quack[b]": "quack"}
    assert found.absent == {
        "quack[a]": "failed: RuntimeError: no kernel image",
        "liger": "failed: RuntimeError: no kernel image",
    }
    found = entered(monkeypatch, {"quack": candidates(**{"quack[a]": fails, "quack[b]": fails})})
    assert found.absent["quack"].startswith("none of its 2 configurations ran; the first: failed: RuntimeError")


def test_memory_that_is_full_has_a_word_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(inputs: Mapping[str, Any]) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    found = entered(monkeypatch, {"liger": candidates(liger=full)})
    assert found.absent["liger"].startswith("out of memory: OutOfMemoryError: CUDA out of memory")


def test_what_killed_a_process_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = entered(monkeypatch, {"liger": candidates(liger=double)}, excluded={"liger": "CRASH: SIGSEGV"})
    assert (found.others, found.absent) == ({}, {"liger": "CRASH: SIGSEGV"})


def test_compile_is_asked_for_in_both_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    built = {n: candidates(**{n: double}) for n in ("eager", "compile", "compile-halves", "liger")}
    found = entered(monkeypatch, built, peers=("compile",))
    assert list(found.others) == ["compile", "compile-halves"]
    assert found.absent == {"eager": "not asked for", "liger": "not asked for"}


def test_a_peer_gets_its_own_layout_outside_the_timed_region(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []

    def prepare(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        prepared.append(inputs)
        return {"halves": inputs["x"]}

    both = {
        name: peers.Candidate(
            lambda inputs: inputs["halves"] * 2, prepare=prepare, finish=lambda raw: {"y": raw}, note="in halves"
        )
        for name in ("quack[a]", "quack[b]")
    }
    found = entered(monkeypatch, {"quack": both})
    assert len(prepared) == 1  # candidates of one layout share their sets
    assert found.prepared["quack[a]"] is found.prepared["quack[b]"]
    assert found.notes == dict.fromkeys(both, "in halves")


def test_the_references_failure_while_checking_timed_outputs_is_the_tasks() -> None:
    def broken(**_: Any) -> dict[str, torch.Tensor]:
        raise ValueError("no")

    dims = {"M": 5, "N": 6, "K": 4}
    inputs = draw(SWIGLU, dims, seed=1, dtype="bfloat16")
    for part in ("reference", "baseline"):
        check = entrants.checker(dataclasses.replace(SWIGLU, **{part: broken}), dims, [inputs], seed=3)
        with pytest.raises(Blamed, match=f"the {part} of") as caught:
            check(0, {})
        assert caught.value.status is Status.INVALID_SPEC


def test_an_authors_schedule_applies_to_gemms_of_its_backend() -> None:
    schedule = Schedule(tile_m=64)
    gemm = subject().program
    assert isinstance(gemm, EpilogueProgram)
    assert own(schedule, "triton", gemm) is schedule
    assert own(schedule, "cutedsl", gemm) is None
    assert own(None, "triton", gemm) is None
    assert own(schedule, "triton", dataclasses.replace(gemm, kind="pointwise")) is None


def test_a_kernel_is_timed_as_a_user_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(SWIGLU, {"M": 5, "N": 6, "K": 4}, seed=1, dtype="bfloat16")
    call = entrants.caller(from_json(subject().program.to_json()), subject(), "reference", None)
    out = call(inputs)
    assert set(out) == {"dz", "h", "zdz"}
    check = entrants.checker(SWIGLU, {"M": 5, "N": 6, "K": 4}, [inputs], seed=3)
    assert check(0, out) is None
    assert "'h'" in str(check(0, {**out, "h": out["h"] * 1.02}))
