"""Settles on a GPU what reading and compiling quack leaves open, and prints one line per question. Under 3 minutes.

    python tests/coda/backends/cutedsl/gpu_probe.py [--json FILE]

    bits      the fp32 view of 16-bit pairs: is every bit pattern moved unchanged?
    ragged    sums, maxima and log-sum-exps where neither M nor N divides into tiles, with loaded vectors and f(0) != 0
    front     the same sums by the front end's own operators: how wrong are they?
    special   infinities and NaN through log-sum-exp, select and maxima
    launch    what the compiled signature refuses, and what it lets through and computes wrongly
    graph     capture of a warm call and its replay
    speed     warm host time per call, and the time on the GPU at 4096³

"launch" goes below `supports`, which refuses all of it; the answers say which refusals could be lifted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from typing import Any

import torch

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[4])]
import gpu_checks as checks  # noqa: E402

from coda.backends.cutedsl import BACKEND  # noqa: E402
from coda.backends.cutedsl.launch import Runner  # noqa: E402

Case = checks.Case
ROWS: list[tuple[str, str, str]] = []


def say(question: str, case: str, answer: str) -> None:
    """One line."""
    ROWS.append((question, case, answer))
    print(f"{question:8} {case:44} {answer}", flush=True)


def attempt(question: str, case: str, f: Any) -> None:
    """The answer, or what was raised; a CUDA error ends the probe, since nothing after it means anything."""
    try:
        say(question, case, f())
    except Exception as error:
        say(question, case, f"raised {type(error).__name__}: {' '.join(str(error).split())[:220]}")
        torch.cuda.synchronize()


def bits() -> str:
    """Every 16-bit pattern but NaN."""
    case = Case("columns_kept", *checks.ALIGNED)
    tensors = checks.inputs(case)
    every = torch.arange(2**16, device="cuda", dtype=torch.int32).to(torch.int16)
    z = every.repeat(-(-tensors["z"].numel() // 2**16))[: tensors["z"].numel()].view(tensors["z"].shape)
    z = torch.where(z.view(torch.bfloat16).isnan(), 0, z)
    got = checks.run(case, {**tensors, "z": z.view(torch.bfloat16)})["y"].view(torch.int16)
    different = int((got != z).sum())
    return "identical" if not different else f"{different} of {z.numel()} differ, first {z[got != z][:4].tolist()}"


def agree(case: Any) -> str:
    """Errors in units of what is allowed."""
    found = checks.check(case)
    verdict = "ok" if max(found.values()) <= 1 else "WRONG"
    return f"{verdict}  " + " ".join(f"{n} {e:.2g}" for n, e in found.items())


def below(case: Any, tensors: dict[str, Any]) -> str:
    """A call that `supports` refuses, run all the same."""
    call = checks.bound(case, tensors)
    reason = BACKEND.supports(case.program, call.problem).reason or "(supported)"
    runner = Runner(case.program, call.problem, case.schedule, call.problem.arch or "")
    try:
        runner.run(call.tensors)
        torch.cuda.synchronize()
    except Exception as error:
        if "CUDA error" in str(error):
            raise
        return f"refused at launch: {' '.join(str(error).split())[-150:]} | {reason[:50]}"
    wanted = checks.exact(case, tensors)
    worst = max(checks.error(call.tensors[f"out.{n}"], wanted[n]) for n in call.outputs)
    return f"{'RAN RIGHT' if worst <= 1 else f'RAN WRONG ({worst:.2g})'} | supports: {reason[:60]}"


def launches() -> None:
    """Sizes and layouts beyond the assumptions of the signature."""
    scale, k0 = Case("rms_scale", 264, 256, 256), Case("residual_rms", 264, 256, 256)
    for case, what in (
        (dataclasses.replace(scale, k=260), "K = 260 (8-byte aligned rows of a)"),
        (dataclasses.replace(scale, n=260), "N = 260 (8-byte aligned rows of b and z)"),
        (dataclasses.replace(scale, n=257), "N = 257"),
        (dataclasses.replace(scale, m=1), "M = 1"),
    ):
        attempt("launch", what, lambda c=case: below(c, checks.inputs(c)))
    tensors = checks.inputs(scale)
    attempt(
        "launch",
        "K = 0",
        lambda: below(dataclasses.replace(scale, k=0), {**tensors, "a": tensors["a"][:, :0], "b": tensors["b"][:0]}),
    )
    attempt(
        "launch",
        "M = 0",
        lambda: below(dataclasses.replace(scale, m=0), {**tensors, "a": tensors["a"][:0], "rstd": tensors["rstd"][:0]}),
    )
    shifted = torch.randn(264 * 256 + 1, device="cuda").bfloat16()[1:].view(264, 256)
    attempt("launch", "base of a 2 bytes off", lambda: below(scale, {**tensors, "a": shifted}))
    attempt(
        "launch",
        "a with stride 2",
        lambda: below(scale, {**tensors, "a": torch.stack([tensors["a"]] * 2, -1).flatten(1)[:, ::2]}),
    )
    attempt(
        "launch", "vector 4 bytes off", lambda: below(scale, {**tensors, "rstd": torch.randn(265, device="cuda")[1:]})
    )
    attempt(
        "launch",
        "vector with stride 2",
        lambda: below(scale, {**tensors, "rstd": torch.randn(528, device="cuda")[::2]}),
    )
    more = checks.inputs(k0)
    attempt(
        "launch", "tile of stride 0", lambda: below(k0, {**more, "residual": more["residual"][:1].expand(264, 256)})
    )
    attempt("launch", "tile 2 bytes off", lambda: below(k0, {**more, "residual": shifted}))
    wide = torch.randn(264, 260, device="cuda").bfloat16()[:, :256]
    attempt("launch", "tile with rows of 520 bytes", lambda: below(k0, {**more, "residual": wide}))


def front() -> str:
    """The sums of `bias_gelu_sums` with the front end's own operators."""
    from quack.epilogue.ops import ColVecReduce, RowVecReduce

    from coda.backends.cutedsl import launch, operators

    mine = operators.RowStatistic, operators.ColumnStatistic
    case = Case("bias_gelu_sums", *checks.RAGGED)
    launch.modified.cache_clear()
    fold = lambda cls, rows: type(  # noqa: E731
        cls.__name__,
        (cls,),
        {
            "__init__": lambda self, name, combine, mask, scaled, alone: cls.__init__(self, name, combine=combine),
            **({"host_fake_arg": mine[0].host_fake_arg} if rows else {}),
        },
    )
    operators.RowStatistic, operators.ColumnStatistic = fold(ColVecReduce, True), fold(RowVecReduce, False)
    try:
        tensors = checks.inputs(case)
        call = checks.bound(case, tensors)
        Runner(case.program, call.problem, case.schedule, call.problem.arch or "").run(call.tensors)
        wanted = checks.exact(case, tensors)
        found = {n: checks.error(call.tensors[f"out.{n}"], wanted[n]) for n in call.outputs}
    finally:
        operators.RowStatistic, operators.ColumnStatistic = mine
        launch.modified.cache_clear()
    return " ".join(f"{n} {e:.2g}" for n, e in found.items()) + "  (ours must be <= 1)"


def graph() -> str:
    """Capture and replay with other inputs."""
    case = Case("residual_rms", *checks.ALIGNED)
    call = checks.bound(case, checks.inputs(case))
    artifact = BACKEND.compile(case.program, call.problem, case.schedule, None)
    BACKEND.launch(artifact, call.tensors)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        BACKEND.launch(artifact, call.tensors)
    fresh = checks.inputs(case, seed=9)
    for name, x in fresh.items():
        if isinstance(x, torch.Tensor):
            call.tensors[name].copy_(x)
    captured.replay()
    wanted = checks.exact(case, fresh)
    worst = max(checks.error(call.tensors[f"out.{n}"], wanted[n]) for n in call.outputs)
    return "ok" if worst <= 1 else f"WRONG {worst:.2g}"


def speed(name: str, tile: str) -> str:
    """Host time of a launch, and GPU time behind a backlog."""
    case = Case(name, 4096, 4096, 4096, tile=tile)
    call = checks.bound(case, checks.inputs(case))
    artifact = BACKEND.compile(case.program, call.problem, case.schedule, None)
    for _ in range(5):
        BACKEND.launch(artifact, call.tensors)
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    started = time.perf_counter()
    for _ in range(100):
        BACKEND.launch(artifact, call.tensors)
    host = (time.perf_counter() - started) * 1e4
    torch.cuda.synchronize()
    flush, times = torch.empty(2**26, dtype=torch.int32, device="cuda"), []
    for _ in range(13):
        torch.cuda._sleep(2_000_000)
        flush.zero_()
        first, last = torch.cuda.Event(True), torch.cuda.Event(True)
        first.record()
        BACKEND.launch(artifact, call.tensors)
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return f"GPU {sorted(times)[6]:.4f} ms, host {host:.1f} us"


def main() -> None:
    """All questions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    options = parser.parse_args()
    started = time.monotonic()
    print(torch.cuda.get_device_name(), torch.__version__, BACKEND.available(), flush=True)
    attempt("bits", "all bf16 patterns but NaN", bits)
    for case in (
        Case("bias_gelu_sums", *checks.RAGGED),
        Case("rms_backward", *checks.RAGGED),
        Case("swiglu_backward", *checks.RAGGED),
        Case("half_sums", *checks.RAGGED),
        Case("rms_cross_entropy", *checks.RAGGED),
        Case("integers", *checks.RAGGED),
    ):
        attempt("ragged", str(case), lambda c=case: agree(c))
    attempt("front", "bias_gelu_sums, quack's own reductions", front)
    for name in ("special", "infinite"):
        attempt("special", f"{name}: infinities, NaN", lambda n=name: agree(Case(n, *checks.RAGGED)))
    attempt("graph", "residual_rms", graph)
    for name, tile in (("residual_rms", "128x256"), ("swiglu_backward", "128x128pp"), ("gemm_swiglu", "128x256")):
        attempt("speed", f"{name} {tile} 4096", lambda n=name, t=tile: speed(n, t))
    launches()
    print(f"{time.monotonic() - started:.0f} s")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(ROWS, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
