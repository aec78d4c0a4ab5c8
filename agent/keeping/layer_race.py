"""The process that measures a layer: contestants made, checked against fp64, raced, and their memory looked at.

    work         {"step": "device"} -> gpu, memory, environment; {"step": "race", …} -> status, reason, record
    Contestant   a module with its inputs: forward, or forward and backward
    Gemms        the layer's matrix products alone, by torch.matmul: 4, or 12 with the backward pass
    contestants  all of them by name, from one set of weights
    jobs_of      what a layer runs, for a tuner in another process
    checked      their errors against fp64, and who is wrong
    race         the record

Forward is that of a training step: what backward needs is kept. Backward gives the gradients of both inputs and all parameters,
fresh ones, added to nothing. The protocol is `coda.bench.timing`'s, with the layer first. Neighbours: `layers.py` starts this
process and has the record; `coda.bench.record` has the variants and the environment in it.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coda import numerics
from coda.bench.record import Compared, environment, measured, now, origin_of
from coda.bench.timing import Clock, CudaClock, measure
from coda.layout import split_gate_up
from coda.tune import choose, is_measured
from coda.tuning import Job, build_ahead, jobs
from examples_curated.layers import llama

from ..records import Status
from ..verify import bench_worker
from .layers import BOTH, EAGER, FORWARD, GEMMS, HEAD, OURS, LayerRecord, Pass, Wanted

SEQUENCE = 8192
"""Tokens after which positions start again."""
BUILD_S = 300.0
"""For building ahead; what is not built by then is built in its call."""


def work(payload: dict[str, Any]) -> dict[str, Any]:
    """One step. `race`: {"width", "ffn", "tokens", "modes", "rounds"}."""
    if payload["step"] == "device":
        return bench_worker.work(payload)
    wanted = Wanted(payload["width"], payload["ffn"], payload["tokens"])
    return run(shape_of(wanted), wanted.tokens, payload["modes"], rounds=payload["rounds"], device="cuda")


def shape_of(wanted: Wanted) -> llama.Shape:
    """All lengths of the layer."""
    heads = wanted.width // HEAD
    return llama.Shape(wanted.width, wanted.ffn, heads, heads, HEAD)


def jobs_of(wanted: Wanted, arch: str) -> list[Job]:
    """What the layer runs, in bf16."""
    return calls(shape_of(wanted), wanted.tokens, torch.bfloat16, arch)


def run(
    shape: llama.Shape,
    tokens: int,
    modes: Mapping[str, str],
    *,
    rounds: int,
    device: str,
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    clock: Clock | None = None,
    memory: Callable[[Callable[[], Any]], int] | None = None,
) -> dict[str, Any]:
    """Make, check and race. `modes`: contestant -> mode of torch.compile. `clock` and `memory` are the GPU's where none is given."""
    began, marks = time.monotonic(), dict[str, float]()
    torch.manual_seed(seed)
    reference = llama.Reference(shape, device=device, dtype=dtype)
    found = contestants(reference, tokens, modes)
    jobs_ahead = calls(shape, tokens, dtype, environment().get("arch"))
    chosen = {job: choose(job.program, job.problem, None, None)[1] for job in jobs_ahead}
    absent = _compiled(found, modes, jobs_ahead)
    marks["compiled"] = time.monotonic() - began
    errors, wrong = checked(found, reference)
    marks["checked"] = time.monotonic() - began
    if OURS in wrong or EAGER in wrong:
        who = OURS if OURS in wrong else EAGER
        return {"status": str(Status.WRONG_VALUES), "reason": f"{who}: {wrong[who]}", "record": None}
    absent |= {name: f"not raced: {why}" for name, why in wrong.items()}
    racing = {name: c for name, c in found.items() if name not in wrong}
    torch.cuda.empty_cache()
    gemms = gemms_of(reference, tokens)
    schedules = {str(job): s.to_dict() for job, s in chosen.items()}
    origin = origin_of([is_measured(job.program, job.problem, s) for job, s in chosen.items()])
    record = race(
        racing, gemms, schedules, origin, clock or CudaClock(), memory or peak_memory, rounds=rounds, seed=seed
    )
    marks["raced"] = time.monotonic() - began
    record |= {
        "layer": "llama",
        "dims": {"tokens": tokens, **_lengths(shape)},
        "dtype": numerics.dtype_name(dtype),
        "errors": errors,
        "absent": absent,
        "environment": environment(),
        "protocol": {
            "name": "default",
            "rounds": rounds,
            "seed": seed,
            "sequence": SEQUENCE,
            "cache": "cold",
            "backlog": True,
            "interleaved": True,
            "modes": dict(modes),
            "seconds": {name: round(s, 1) for name, s in marks.items()},
        },
        "measured_at": now(),
    }
    return {"status": str(Status.PASS), "reason": "", "record": LayerRecord(**record).model_dump(mode="json")}


def _compiled(found: dict[str, Contestant], modes: Mapping[str, str], jobs_ahead: Sequence[Job]) -> dict[str, str]:
    """Everything compiled: the layer's programs in processes of their own, while torch.compile works in this one. A contestant that
    torch.compile cannot compile is dropped, with the reason."""
    absent: dict[str, str] = {}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        if any(job.problem.arch for job in jobs_ahead):
            # its result is not looked at: whatever does not compile there does not in the layer's call, which says so
            pool.submit(build_ahead, jobs_ahead, budget_s=BUILD_S)
        for name in modes:
            try:
                found[name].both()
            except Exception as error:
                absent[name] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
                del found[name]
    return absent


def _lengths(shape: llama.Shape) -> dict[str, int]:
    found = dataclasses.asdict(shape)
    return {name: found[name] for name in ("width", "ffn", "heads", "kv_heads", "head")}


# who races --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contestant:
    """A module's call, what gradients are wanted of, and the gradients that arrive."""

    call: Callable[[], Sequence[Tensor]]
    leaves: tuple[Tensor, ...]
    """x0, y0 and the parameters."""
    given: tuple[Tensor, ...]

    def forward(self) -> Sequence[Tensor]:
        """x2 and qkv."""
        return self.call()

    def both(self) -> Sequence[Tensor]:
        """x2 and qkv, and the gradients of the leaves."""
        outputs = self.call()
        return *outputs, *torch.autograd.grad(outputs, self.leaves, self.given)


@dataclass(frozen=True)
class Gemms:
    """Products of x (M, in), a weight (out, in) and what arrives, (M, out)."""

    operands: tuple[tuple[Tensor, Tensor, Tensor], ...]

    def forward(self) -> Sequence[Tensor]:
        """One of each weight."""
        return [x @ w.mT for x, w, _ in self.operands]

    def both(self) -> Sequence[Tensor]:
        """Three of each weight."""
        return [product for x, w, dy in self.operands for product in (x @ w.mT, dy @ w, dy.mT @ x)]


def contestants(reference: llama.Reference, tokens: int, modes: Mapping[str, str]) -> dict[str, Contestant]:
    """The layer first, then eager PyTorch, then torch.compile in each mode. Those of PyTorch share weights; inputs all do."""
    shape, like = reference.shape, reference.out
    x0, y0 = (_normal(like, tokens, n).requires_grad_() for n in (shape.width, shape.attention))
    given = tuple(_normal(like, tokens, n) for n in (shape.width, shape.parameters["qkv"][0]))
    position = torch.arange(tokens, device=like.device) % SEQUENCE
    turn = llama.rope(shape, position, like.dtype)
    layer = llama.Layer.from_reference(reference)

    def plain(call: Callable[..., Any]) -> Contestant:
        return Contestant(lambda: call(x0, y0, *turn), (x0, y0, *reference.parameters()), given)

    found = {OURS: Contestant(lambda: layer(x0, y0, position), (x0, y0, *layer.parameters()), given)}
    found[EAGER] = plain(reference)
    for name, mode in modes.items():
        # the length is this one: the second layer of a process would else be compiled for every length
        found[name] = plain(torch.compile(reference, mode=mode, dynamic=False))
    return found


def gemms_of(reference: llama.Reference, tokens: int) -> Gemms:
    """The products of a layer with these weights, of random operands."""
    weights = [getattr(reference, name).detach() for name in llama.WEIGHTS]
    return Gemms(tuple((_normal(w, tokens, w.shape[1]), w, _normal(w, tokens, w.shape[0])) for w in weights))


def _normal(like: Tensor, *lengths: int) -> Tensor:
    return torch.randn(lengths, device=like.device, dtype=like.dtype)


def calls(shape: llama.Shape, tokens: int, dtype: torch.dtype, arch: str | None) -> list[Job]:
    """The programs that a layer runs, at the sizes and in the layouts of its calls: so that they can be built side by side, and
    the record can say what ran."""

    def matrix(*lengths: int) -> Tensor:
        return torch.empty(lengths, device="meta", dtype=dtype)

    weight = {name: matrix(*lengths) for name, lengths in shape.parameters.items()}
    col = torch.empty(tokens, device="meta", dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    stream, wide = matrix(tokens, shape.width), matrix(tokens, weight["qkv"].shape[0])
    hidden, pairs = matrix(tokens, shape.ffn), matrix(tokens, 2 * shape.ffn)
    turn = {
        "position": torch.empty(tokens, device="meta", dtype=torch.int64),
        "frequency": torch.empty(wide.shape[1] // 2, device="meta", dtype=col.dtype),
    }
    norm = {"residual": stream, "gamma": weight["mlp_gain"]}
    back = {"h": stream, "gamma": weight["mlp_gain"], "rstd": col, "s": col, "dres": stream}
    found = [
        jobs(llama.residual_rms, matrix(tokens, shape.attention), weight["out"].mT, **norm, arch=arch),
        jobs(llama.rms_swiglu, stream, weight["gate_up"].mT, rstd=col, arch=arch),
        jobs(llama.residual_rms, hidden, weight["down"].mT, **norm, arch=arch),
        jobs(llama.rms_rope_positions, stream, weight["qkv"].mT, rstd=col, **turn, arch=arch),
        jobs(llama.rope_backward, wide, wide, **turn, arch=arch),
        jobs(llama.rms_backward, wide, weight["qkv"], **back, arch=arch),
        jobs(llama.swiglu_backward, stream, weight["down"], z=pairs, arch=arch),
        jobs(llama.rms_backward, pairs, weight["gate_up"], **back, arch=arch),
    ]
    return [job for of_call in found for job in of_call]


# who is right -----------------------------------------------------------------------------------------------------------


def checked(
    found: Mapping[str, Contestant], reference: llama.Reference
) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    """Everybody's outputs and gradients against fp64 of the same rounded numbers: errors by contestant and result, and what is
    wrong by contestant.

    A layer is a chain of a dozen roundings, so the rule is the one for packages' kernels (`numerics.roughly`), with eager PyTorch as
    the trusted one, which must itself be near.
    """
    names = ["x2", "qkv", *(f"d {name}" for name in ("x0", "y0", *(n for n, _ in reference.named_parameters())))]
    exact = dict(zip(names, _exact(found[EAGER], reference), strict=True))
    plain = dict(zip(names, found[EAGER].both(), strict=True))
    errors: dict[str, dict[str, float]] = {}
    wrong: dict[str, str] = {}
    for who, contestant in found.items():
        values = plain if who == EAGER else dict(zip(names, contestant.both(), strict=True))
        if who == OURS:
            values["d gate_up"] = split_gate_up(values["d gate_up"])
        errors[who] = {n: _distance(values[n].detach(), exact[n]) for n in names}
        for n in names:
            right = numerics.roughly(values[n].detach(), plain[n].detach(), exact[n], working=_working(reference))
            if not right.ok or not errors[who][n] < numerics.FAR:
                wrong.setdefault(who, f"{n} is off by {errors[who][n]:.2g} of its size ({right.why or 'far'})")
    return errors, wrong


def _exact(eager: Contestant, reference: llama.Reference) -> Sequence[Tensor]:
    """The same call in fp64: the weights of the reference, the eager contestant's inputs."""
    twin = copy.deepcopy(reference).double()
    x0, y0 = (x.detach().double().requires_grad_() for x in eager.leaves[:2])
    position = torch.arange(len(x0), device=x0.device) % SEQUENCE
    turn = llama.rope(reference.shape, position, torch.float64)
    leaves, given = (x0, y0, *twin.parameters()), tuple(x.double() for x in eager.given)
    return [x.detach() for x in Contestant(lambda: twin(x0, y0, *turn), leaves, given).both()]


def _distance(value: Tensor, exact: Tensor) -> float:
    """Relative, of norms; in fp64, as `exact` is."""
    return float(torch.linalg.vector_norm(value - exact) / torch.linalg.vector_norm(exact))


def _working(reference: llama.Reference) -> str:
    return numerics.dtype_name(reference.out.dtype)


# the race ---------------------------------------------------------------------------------------------------------------


def race(
    found: Mapping[str, Contestant],
    gemms: Gemms,
    schedules: Mapping[str, Any],
    origin: str,
    clock: Clock,
    memory: Callable[[Callable[[], Any]], int],
    *,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Passes and memory, as the record has them. `schedules`: of the layer's programs, by name and size, and
    where they come from."""
    everybody: dict[str, Contestant | Gemms] = {**found, GEMMS: gemms}
    authors = dict.fromkeys(everybody, "tool") | {OURS: "candidate"}
    steps = {
        FORWARD: {who: _timed(c.forward) for who, c in everybody.items()},
        BOTH: {who: _timed(c.both) for who, c in everybody.items()},
    }
    passes: dict[str, Pass] = {}
    for name, variants in steps.items():
        timings = measure(variants, clock, rounds=rounds, seed=seed)
        against = {who: timings.compare(OURS, who) for who in everybody if who != OURS}
        passes[name] = Pass(
            measured=measured(timings, authors, {OURS: schedules}, origins={OURS: origin}),
            compared=tuple(Compared(who, r.ratio, r.low, r.high, r.word) for who, r in against.items()),
            noise_floor=timings.floor,
        )
    return {"passes": passes, "memory": {who: memory(c.both) for who, c in found.items()}}


def _timed(step: Callable[[], Any]) -> Callable[[int], Any]:
    """As a variant; there is one set of inputs, many times as large as the L2."""
    return lambda at: step()


def peak_memory(call: Callable[[], Any]) -> int:
    """Bytes that a call allocates on the GPU at its peak, beyond what is there before it."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
