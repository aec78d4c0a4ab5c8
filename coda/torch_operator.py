"""A call inside a graph of torch.compile: one operator for every program and plan, and a twin that writes into `out=`.

    coda::run       digest, tensors, numbers -> every output
    coda::run_out   the same, written into given tensors; of those that a call does not give, new ones are made in the graph
    register        make a program or a plan known by its digest
    traced          what a kernel's call becomes while Dynamo traces it, and for tensors without memory
    traced_plan     the same for a plan

The digest names the program as data; `names` says which operand each tensor and each number belongs to. The shapes of
the outputs come from the program's own rules, with a symbolic M (and K); N is specialised, and so are numbers: one that
changes from call to call is passed as a 0-d tensor, but a length of a plan, which is part of shapes, only as an int. Eager
calls never come here.

What runs is what runs in an eager call, warm calls included (`coda.call`, `coda.replay`). A plan is one operator: its
programs are launched one after the other, and an output that is a view is returned as a copy. The graph is functional, so
that an `out=` which overlaps an input gets what separate memory would get.

A compiled graph may outlive the process that made it (an exported program, a compiler's cache): the process that runs it
must have the program, by importing what defines the kernel or by `register`. Else: `UnknownProgram`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coda import handles
from coda.arguments import arguments
from coda.binding import NO_GRADIENT, check, check_tangents, check_targets, held, new_outputs
from coda.call import Calls
from coda.errors import (
    DeviceMismatch,
    NotDifferentiable,
    UnknownBackend,
    UnknownOperand,
    UnknownProgram,
    Unsupported,
)
from coda.plan import Plan, execute
from coda.problem import Schedule
from coda.program import EpilogueProgram, shape_of
from coda.replay import PlanCalls, compute_of

if TYPE_CHECKING:
    from coda.kernel import Kernel, PlanKernel

SCHEDULE_FIELDS = tuple(f.name for f in fields(Schedule))


# programs by digest -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    program: EpilogueProgram | Plan
    calls: Calls | PlanCalls


_known: dict[str, _Entry] = {}


def register(program: EpilogueProgram | Plan) -> str:
    """Make a program known to compiled graphs for as long as the process lives. Returns its digest."""
    if program.digest not in _known:
        calls = PlanCalls(program) if isinstance(program, Plan) else Calls()
        _known[program.digest] = _Entry(program, calls)
    return program.digest


def _entry(digest: str) -> _Entry:
    if digest not in _known:
        raise UnknownProgram(
            "a compiled graph calls a program that this process does not have",
            got=f"digest {digest[:12]}",
            hint="the graph was made by another process: import the module that defines the kernel and call "
            "coda.torch_operator.register(kernel.program), or compile again",
        )
    return _known[digest]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _digest(handle: int, dtypes: tuple[tuple[str, str], ...], constants: tuple[tuple[str, Any], ...]) -> str:
    """The digest of a kernel's program for operands of these dtypes; runs as it is while a graph is traced."""
    return register(handles.kernel(handle).specialised(dict(dtypes), dict(constants)))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _lengths(digest: str) -> tuple[str, ...]:
    """The inputs of a plan that decide how much is sliced or viewed."""
    program = _entry(digest).program
    assert isinstance(program, Plan)
    return tuple(sorted(program.deciding))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _spelled(values: tuple[Any, ...]) -> str:
    """A schedule as text."""
    return json.dumps(dict(zip(SCHEDULE_FIELDS, values, strict=True)))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _rules(digest: str, dtype: torch.dtype) -> tuple[tuple[str, int, int], tuple[tuple[str, bool, int, int, Any], ...]]:
    """The program's own rules as constants, where the first matrix has `dtype`: which input decides N and its columns as a
    fraction of N; for each output its name, whether it has rows, its columns as a fraction of N, and its dtype."""
    program = _entry(digest).program
    assert isinstance(program, EpilogueProgram)
    decides, width = program.decides_columns
    outputs = []
    for output in program.outputs:
        rows, part = program.output_axes(output.name)
        stored = getattr(torch, program.output_dtype(output.name, str(dtype).removeprefix("torch.")))
        outputs.append((output.name, rows, part.numerator, part.denominator, stored))
    return (decides, width.numerator, width.denominator), tuple(outputs)


@functools.lru_cache(maxsize=1024)
def _schedule(text: str) -> Schedule | None:
    return Schedule.from_dict(json.loads(text)) if text else None


@functools.lru_cache(maxsize=4096)
def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split(",")) if names else ()


def _operands(names: str, tensors: Sequence[Tensor], scalars: Sequence[Any]) -> dict[str, Any]:
    """By name; an operator takes tensors and numbers apart."""
    return dict(zip(_split(names), (*tensors, *scalars), strict=True))


# the operators ----------------------------------------------------------------------------------------------------

_SCHEMA = "str digest, Tensor[] tensors, Scalar[] scalars, {}str names, str backend, str config"


def _run(digest: str, tensors: Sequence[Tensor], scalars: Sequence[Any], names: str, backend: str, config: str) -> Any:
    operands = _operands(names, tensors, scalars)
    entry = _entry(digest)
    if isinstance(entry.program, Plan):
        assert isinstance(entry.calls, PlanCalls)
        return _owned(entry.program, _planned(entry.program, entry.calls, operands, backend, config))
    return _launched(entry, operands, backend, config, None)


def _planned(plan: Plan, calls: PlanCalls, operands: Mapping[str, Any], backend: str, config: str) -> list[Tensor]:
    schedule = _schedule(config)
    results: Sequence[Any] | None = calls.again((), operands, backend or None, schedule)
    if results is None:
        results = calls(lambda _: plan, (), operands, backend or None, schedule)
    return _plain(plan.name, operands, results)


def _launched(
    entry: _Entry, operands: Mapping[str, Any], backend: str, config: str, out: Mapping[str, Tensor] | None
) -> list[Tensor]:
    program = entry.program
    assert isinstance(program, EpilogueProgram)
    assert isinstance(entry.calls, Calls)
    schedule = _schedule(config)
    results: Sequence[Tensor] | None = entry.calls.again((), operands, backend or None, schedule, out)
    if results is None:
        results = entry.calls(lambda: program, (), operands, backend or None, schedule, out)
    return _plain(program.name, operands, results)


def _plain(name: str, operands: Mapping[str, Any], results: Sequence[Tensor] | None) -> list[Tensor]:
    """The results. Raises `Unsupported` where tensors were no plain memory even here."""
    if results is None:
        kinds = sorted({type(x).__name__ for x in operands.values() if isinstance(x, Tensor)})
        raise Unsupported(f"{name}: tensors without memory of their own", got=", ".join(kinds), expected="torch.Tensor")
    return list(results)


def _run_out(
    digest: str,
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    out: Sequence[Tensor],
    names: str,
    backend: str,
    config: str,
) -> None:
    operands = _operands(names, tensors, scalars)
    entry = _entry(digest)
    _launched(entry, operands, backend, config, _by_name(entry.program, out))


def _by_name(program: EpilogueProgram | Plan, out: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip((o.name for o in program.outputs), out, strict=True))


def _owned(plan: Plan, results: Sequence[Tensor]) -> list[Tensor]:
    """The results, copied where one may share memory with an input or with another one: an operator may not return such."""
    seen: set[int] = set()
    owned = []
    for output, t in zip(plan.outputs, results, strict=True):
        fresh = plan.steps[output.step].op == "result" and output.step not in seen
        seen.add(output.step)
        owned.append(t if fresh else t.clone())
    return owned


def _shapes(program: EpilogueProgram, operands: Mapping[str, Any]) -> dict[str, Tensor]:
    """Empty outputs, from the program's own rules. Raises a `CallError`."""
    m, n, _, dtype, device = check(program, arguments(program, (), operands))
    return new_outputs(program, m, n, dtype, device)


def _fake_run(
    digest: str, tensors: Sequence[Tensor], scalars: Sequence[Any], names: str, backend: str, config: str
) -> Any:
    operands = _operands(names, tensors, scalars)
    program = _entry(digest).program
    if isinstance(program, EpilogueProgram):
        return list(_shapes(program, operands).values())
    bound = program.bind((), operands)
    results = execute(program, bound, _shapes, compute_of(program, bound), rounds=True)
    return _owned(program, list(results.values()))


def _fake_run_out(
    digest: str,
    tensors: Sequence[Tensor],
    scalars: Sequence[Any],
    out: Sequence[Tensor],
    names: str,
    backend: str,
    config: str,
) -> None:
    operands = _operands(names, tensors, scalars)
    program = _entry(digest).program
    assert isinstance(program, EpilogueProgram)
    m, n, _, dtype, device = check(program, arguments(program, (), operands))
    check_targets(program, _by_name(program, out), m, n, dtype, device)


def _define() -> torch.library.Library:
    """Register both. `Library` and not `custom_op`, whose wrappers take longer than a call; a gradient is refused by the call
    itself, and it counts the versions of what it writes."""
    library = torch.library.Library("coda", "FRAGMENT")  # type: ignore[no-untyped-call]
    # strides decide which kernel runs: those of the graph as it was written
    tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
    for name, more, results, implementation, fake in (
        ("run", "", "Tensor[]", _run, _fake_run),
        ("run_out", "Tensor(a!)[] out, ", "()", _run_out, _fake_run_out),
    ):
        library.define(f"{name}({_SCHEMA.format(more)}) -> {results}", tags=tags)  # type: ignore[no-untyped-call]
        library.impl(name, implementation, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"coda::{name}", fake, lib=library)
    return library


_LIBRARY = _define()


# calls that become operators --------------------------------------------------------------------------------------


def traced(
    kernel: Kernel[Any],
    args: Sequence[Any],
    operands: Mapping[str, Any],
    backend: str | None,
    config: Schedule | None,
    out: Mapping[str, Any] | None,
    constants: tuple[tuple[str, Any], ...],
) -> Any:
    """A call of one program as an operator. Dynamo reads this function: it does nothing but sort the arguments."""
    _check_options(kernel, backend, out)
    given = _given(kernel, args, operands)
    tensors, scalars, names, dtypes = _sorted(kernel, given, out)
    digest = _digest(kernel.handle, dtypes, constants)
    how = (names, backend or "", "" if config is None else _spelled(_fields(config)))
    if not out:
        return kernel.result(*torch.ops.coda.run(digest, tensors, scalars, *how))
    _check_names(kernel, out)
    targets = _targets(digest, kernel.places[0], given, out)
    if targets is None:
        return kernel.result(*torch.ops.coda.run(digest, tensors, scalars, *how))  # it says what is wrong
    torch.ops.coda.run_out(digest, tensors, scalars, targets, *how)
    return kernel.result(*targets)


def _targets(digest: str, place: str, given: Mapping[str, Any], out: Mapping[str, Any]) -> list[Tensor] | None:
    """Every output in order: those given, and new ones by the program's rules. None where a matrix that decides is missing."""
    first = given.get(place)
    if not isinstance(first, Tensor):
        return None
    (decides, numerator, denominator), rules = _rules(digest, first.dtype)
    columns = given.get(decides)
    if not isinstance(columns, Tensor) or first.ndim != 2 or columns.ndim != 2:
        return None
    m, n = first.shape[0], columns.shape[1] * denominator // numerator
    targets = []
    for name, rows, numerator, denominator, dtype in rules:
        if name in out:
            targets.append(out[name])
            continue
        targets.append(first.new_empty(shape_of(rows, numerator, denominator, m, n), dtype=dtype))
    return targets


def traced_plan(
    kernel: PlanKernel,
    args: Sequence[Any],
    operands: Mapping[str, Any],
    backend: str | None,
    config: Schedule | None,
    out: Mapping[str, Any] | None,
) -> Any:
    """A call of a plan as an operator; what is given to write into is copied to."""
    _check_options(kernel, backend, out)
    given = _given(kernel, args, operands)
    tensors, scalars, names, dtypes = _sorted(kernel, given, out)
    digest = _digest(kernel.handle, dtypes, ())
    if torch.compiler.is_dynamo_compiling() and _valued(kernel, given, _lengths(digest)):
        return _eagerly(kernel, args, operands, backend=backend, config=config, out=out)
    results = torch.ops.coda.run(
        digest, tensors, scalars, names, backend or "", "" if config is None else _spelled(_fields(config))
    )
    if out:
        _check_names(kernel, out)
        for name, target in out.items():
            if not isinstance(target, Tensor) or target.device != results[0].device:
                _leave(f"DeviceMismatch: {kernel.name}: out={name!r}")
                raise DeviceMismatch(f"{kernel.name}: out={name!r}", expected=f"a tensor on {results[0].device}")
        for name, result in zip(kernel.outputs, results, strict=True):
            if name in out and (out[name].shape != result.shape or out[name].dtype != result.dtype):
                _leave(
                    f"ShapeMismatch: {kernel.name}: out={name!r}: got {tuple(out[name].shape)} {out[name].dtype}, "
                    f"expected {tuple(result.shape)} {result.dtype}"
                )
        results = kernel.written(results, out)
    return kernel.result(*results)


def _check_options(kernel: Kernel[Any], backend: object, out: object) -> None:
    """As `coda.kernel.check_options`, which says more."""
    if backend is not None and not isinstance(backend, str):
        _leave(f"UnknownBackend: {kernel.name}: backend= takes a name")
        raise UnknownBackend(f"{kernel.name}: backend= takes a name")
    if out is not None and not isinstance(out, Mapping):
        _leave(f'UnknownOperand: {kernel.name}: out= takes tensors by output name: out={{"v": tensor}}')
        raise UnknownOperand(f"{kernel.name}: out= takes tensors by output name", hint='out={"v": tensor}')


def _valued(kernel: PlanKernel, given: Mapping[str, Any], lengths: tuple[str, ...]) -> bool:
    """Whether a tensor's value decides a shape, which no graph can know. Leaves the graph."""
    for name in lengths:
        if isinstance(given.get(name), Tensor):
            _leave(
                f"DTypeUnsupported: {kernel.name}: {name} decides how much is sliced or viewed: got a tensor, expected "
                "an int. In a graph a length is a Python int, and another one is another graph"
            )
            return True
    return False


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _eagerly(kernel: PlanKernel, args: Sequence[Any], operands: Mapping[str, Any], **options: Any) -> Any:
    """The call outside the graph; without this, what runs there would be compiled piece by piece."""
    return kernel(*args, **operands, **options)


def _fields(config: Schedule) -> tuple[Any, ...]:
    return tuple([getattr(config, name) for name in SCHEDULE_FIELDS])


def _given(kernel: Kernel[Any], args: Sequence[Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name. Raises `UnknownOperand` for too many, or one that is given twice."""
    places = kernel.places
    given: dict[str, Any] = {}
    for at, x in enumerate(args):
        if at >= len(places):
            _leave(f"UnknownOperand: {kernel.name}: too many positional arguments, expected {', '.join(places)}")
            raise UnknownOperand(f"{kernel.name}: too many positional arguments", expected=", ".join(places))
        given[places[at]] = x
    for name, x in operands.items():
        if name in given:
            _leave(f"UnknownOperand: {kernel.name}: {name} was given twice")
            raise UnknownOperand(f"{kernel.name}: {name} was given twice")
        given[name] = x
    return given


def _sorted(
    kernel: Kernel[Any], given: Mapping[str, Any], out: Mapping[str, Any] | None
) -> tuple[list[Tensor], list[Any], str, tuple[tuple[str, str], ...]]:
    """Tensors, numbers, the names of both in this order, and whether each tensor holds ints or floats.

    Raises `NotDifferentiable`, also for what is written into.
    """
    tensors, scalars = [], []
    names, numbers, wanting = [], [], []
    for name, x in given.items():
        if not isinstance(x, Tensor):
            scalars.append(x)
            numbers.append(name)
            continue
        tensors.append(x)
        names.append(name)
        if x.requires_grad:
            wanting.append(name)
    if out:
        for name, x in out.items():
            if isinstance(x, Tensor) and x.requires_grad:
                wanting.append(f"out={name!r}")
    if wanting and torch.is_grad_enabled():
        got = f"requires_grad on {', '.join(wanting)}"
        _leave(f"NotDifferentiable: {kernel.name}: a raw kernel call has no gradient: got {got}. {NO_GRADIENT}")
        raise NotDifferentiable(f"{kernel.name}: a raw kernel call has no gradient", got=got, hint=NO_GRADIENT)
    if not torch.compiler.is_dynamo_compiling():
        check_tangents(kernel.name, {**given, **(out or {})})
    return tensors, scalars, ",".join(names + numbers), tuple(held(given).items())


def _check_names(kernel: Kernel[Any], out: Mapping[str, Any]) -> None:
    for name in out:
        if name not in kernel.outputs:
            _leave(f"UnknownOperand: {kernel.name} has no output {name!r}")
            raise UnknownOperand(f"{kernel.name} has no output {name!r}", expected=", ".join(kernel.outputs))


def _leave(reason: str) -> None:
    """Leave the graph, so that the eager call raises what it raises; with `fullgraph=True` the reason is the error."""
    torch._dynamo.graph_break(msg=reason)
