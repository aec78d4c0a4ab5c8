"""From a decorated function to a `Plan`.

    PlanValue    what the author's function sees: a matrix, a vector or a number that is not there yet
    trace_plan   run the function once over such values, keep the steps that reach an output

A kernel called with a `PlanValue` records a call instead of running (`record_call`, used by `coda.kernel`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from coda.errors import (
    AuthoringError,
    BadOutputs,
    BadSignature,
    PlanError,
    TracedControlFlow,
    UnknownOperand,
    UnknownResult,
    shown,
)
from coda.plan import MAX_STEPS, PLAN_MAPS, Plan, PlanOutput, Step, check_input_name
from coda.primitives.types import Attr, DType, Kind
from coda.primitives.value import apply, author_line, encode, integer_power, unboxed
from coda.program import EpilogueProgram, check_name

What = Literal["matrix", "vector", "number", "unknown"]


class Recorder:
    """The steps of a plan under construction; equal steps are one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.programs: list[EpilogueProgram] = []
        self._known: dict[str, int] = {}

    def add(self, op: str, args: Sequence[int] = (), **attrs: Attr) -> int:
        """Index of the step, new or already there."""
        step = Step(op, tuple(args), tuple(sorted(attrs.items())))
        key = f"{op}({step.args};{','.join(f'{k}={encode(v)}' for k, v in step.attrs)})"
        if key not in self._known:
            if len(self.steps) >= MAX_STEPS:
                raise PlanError("the plan is too long", got=f"more than {MAX_STEPS} steps", where=author_line())
            self.steps.append(step)
            self._known[key] = len(self.steps) - 1
        return self._known[key]

    def program(self, program: EpilogueProgram) -> int:
        """Index of a program; programs with the same digest and name are one."""
        for i, known in enumerate(self.programs):
            if known.digest == program.digest and known.name == program.name:
                return i
        self.programs.append(program)
        return len(self.programs) - 1


def _no(what: str, hint: str) -> NoReturn:
    raise TracedControlFlow(
        f"{what} on a value of a plan: it is not known while the plan is traced", hint=hint, where=author_line()
    )


class PlanValue:
    """A matrix, a vector or a number of a plan: views, sizes, and arithmetic on vectors and numbers."""

    def __init__(self, recorder: Recorder, step: int, what: What, dtype: DType | None = None) -> None:
        self.recorder, self.step, self.what, self.dtype = recorder, step, what, dtype

    def __repr__(self) -> str:
        return f"<{self.what} of a plan>"

    def _add(self, what: What, op: str, args: Sequence[int] = (), **attrs: Attr) -> PlanValue:
        return PlanValue(self.recorder, self.recorder.add(op, (self.step, *args), **attrs), what, self.dtype)

    def _matrix(self, spelling: str) -> None:
        if self.what in ("vector", "number"):
            raise PlanError(f"{spelling} of a {self.what}", expected="a matrix", where=author_line())

    @property
    def mT(self) -> PlanValue:  # noqa: N802
        """The transposed matrix, a view."""
        self._matrix(".mT")
        return self._add("matrix", "mT")

    @property
    def rows(self) -> PlanValue:
        """Number of rows of a matrix."""
        self._matrix(".rows")
        return self._add("number", "rows")

    @property
    def columns(self) -> PlanValue:
        """Number of columns of a matrix."""
        self._matrix(".columns")
        return self._add("number", "columns")

    def view(self, m: PlanValue | int, n: PlanValue | int) -> PlanValue:
        """The same elements as m rows of n columns."""
        self._matrix(".view")
        return self._add("matrix", "view", [_number(self.recorder, m), _number(self.recorder, n)])

    def __getitem__(self, item: object) -> PlanValue:
        self._matrix("a column slice")
        if not (isinstance(item, tuple) and len(item) == 2 and item[0] == slice(None) and isinstance(item[1], slice)):
            raise PlanError("only column slices x[:, i:j]", got=repr(item), where=author_line())
        if item[1].step is not None:
            raise PlanError(
                "a column slice has no step",
                got=item[1].step,
                hint="unpair(v) in a program takes every other",
                where=author_line(),
            )
        start = _number(self.recorder, 0 if item[1].start is None else item[1].start)
        stop = self.columns.step if item[1].stop is None else _number(self.recorder, item[1].stop)
        return self._add("matrix", "slice", [start, stop])

    def __coda_apply__(self, name: str, args: Sequence[Any], attrs: Mapping[str, Attr]) -> PlanValue:
        if name not in PLAN_MAPS:
            raise PlanError(
                f"{name} in a plan",
                expected="arithmetic and maps on vectors",
                hint="write it in a program",
                where=author_line(),
            )
        what: What = "number"
        for x in args:
            if isinstance(x, PlanValue) and x.what != "number":
                if x.what == "matrix":
                    raise PlanError(
                        f"{name} on a matrix in a plan",
                        hint="write a @coda.pointwise program and call it",
                        where=author_line(),
                    )
                what = "vector"
        steps = [_number(self.recorder, x) for x in args]
        return PlanValue(self.recorder, self.recorder.add("map", steps, name=name, **attrs), what)

    def __bool__(self) -> bool:
        _no(
            "`if`, `and`, `or`, `not` or a comparison chain",
            "a plan is a straight line; use where(condition, a, b) on vectors",
        )

    def __iter__(self) -> Iterator[Any]:
        _no("iteration", "take the results of a call by name: r.q")

    def __float__(self) -> float:
        _no("float()", "use coda.primitives on vectors")

    __int__ = __index__ = __float__
    __hash__ = object.__hash__

    def __matmul__(self, other: object) -> NoReturn:
        raise PlanError(
            "`@` in a plan", hint="write coda.matmul(a, b), or call an epilogue on a and b", where=author_line()
        )

    def __pow__(self, power: int) -> PlanValue:
        return integer_power(self, power)  # type: ignore[arg-type, return-value]


def _install_operators() -> None:
    """The operators of `Value`, through the same `apply`."""

    def binary(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
        def method(self: Any, other: Any) -> Any:
            return apply(name, other, self) if swapped else apply(name, self, other)

        return method

    arithmetic = {
        "add": "add",
        "sub": "sub",
        "mul": "mul",
        "truediv": "div",
        "floordiv": "floordiv",
        "mod": "mod",
    }
    for symbol, name in arithmetic.items():
        for cls in (PlanValue, Results):  # on results it is an error, which names them
            setattr(cls, f"__{symbol}__", binary(name, False))
            setattr(cls, f"__r{symbol}__", binary(name, True))
    for symbol in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or"):
        setattr(PlanValue, f"__{symbol}__", binary(symbol, False))
    for symbol, name in {"neg": "neg", "abs": "abs", "invert": "not"}.items():
        setattr(PlanValue, f"__{symbol}__", lambda self, name=name: apply(name, self))


def _number(recorder: Recorder, x: Any) -> int:
    """The step of a plan value or of a constant."""
    if isinstance(x, PlanValue):
        if x.recorder is not recorder:
            raise PlanError("a value of another plan", where=author_line())
        return x.step
    x = unboxed(x)
    if isinstance(x, (bool, int, float)):
        return recorder.add("const", value=x)
    raise PlanError(
        "not something a plan can use",
        got=shown(x),
        expected="a value of the plan or a number",
        where=author_line(),
    )


@dataclass(frozen=True)
class Results:
    """What a recorded call returns: results by name or in order."""

    values: dict[str, PlanValue]

    def __getattr__(self, name: str) -> PlanValue:
        values: dict[str, PlanValue] = object.__getattribute__(self, "values")
        if name.startswith("_"):  # what Python and `apply` look for on any object
            raise AttributeError(name)
        if name not in values:
            raise UnknownOperand(f"no result {name!r}", expected=", ".join(values), where=author_line())
        return values[name]

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return tuple(self.values.values())[key]
        if key not in self.values:
            raise UnknownResult(f"no result {key!r}", expected=", ".join(self.values), where=author_line())
        return self.values[key]

    def __iter__(self) -> Iterator[PlanValue]:
        return iter(self.values.values())

    def __coda_apply__(self, name: str, args: Sequence[Any], attrs: Mapping[str, Attr]) -> PlanValue:
        raise PlanError(
            f"{name} on the results of a call",
            got=", ".join(self.values),
            hint="name one of them: r.y",
            where=author_line(),
        )


_install_operators()


def record_call(program: EpilogueProgram, bound: Mapping[str, Any]) -> Results:
    """Record a call of a program on plan values by name; `bound` is complete."""
    recorder = next(x.recorder for x in bound.values() if isinstance(x, PlanValue))
    names = program.argument_names
    for operand in program.operands:
        x = bound[operand.name]
        wanted = {Kind.TILE: "matrix", Kind.SCALAR: "number"}.get(operand.kind, "vector")
        if isinstance(x, PlanValue) and x.what not in (wanted, "unknown"):
            raise PlanError(f"{program.name}: {operand.name} takes a {wanted}", got=f"a {x.what}", where=author_line())
    args = [_number(recorder, bound[name]) for name in names]
    call = recorder.add("call", args, program=recorder.program(program), names=",".join(names))
    values = {}
    for output in program.outputs:
        t = program.nodes[output.node].type
        what: What = "matrix" if t.kind in (Kind.TILE, Kind.SEGMENT) else "vector"
        dtype = t.dtype if output.dtype is None or t.dtype is DType.INT else DType.FLOAT
        values[output.name] = PlanValue(recorder, recorder.add("result", [call], name=output.name), what, dtype)
    return Results(values)


def operand_dtypes(program: EpilogueProgram, bound: Mapping[str, Any]) -> dict[str, str]:
    """ "int" for every vector operand whose plan value is known to hold integers."""
    return {
        o.name: "int"
        for o in program.operands
        if o.kind in (Kind.ROW, Kind.COL) and isinstance(x := bound.get(o.name), PlanValue) and x.dtype is DType.INT
    }


underway = 0
"""How many plans are being traced: while there are none, no call looks for plan values among its arguments."""


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    global underway
    underway += 1
    try:
        yield
    finally:
        underway -= 1


def trace_plan(function: Callable[..., Any], dtypes: Mapping[str, str] | None = None) -> Plan:
    """Run the function over plan values and return the plan. Raises an `AuthoringError`.

    `dtypes` says which inputs hold integers ("int") where that is known.
    """
    recorder = Recorder()
    arguments = {}
    for p in inspect.signature(function, eval_str=True).parameters.values():
        arguments[p.name] = _input(recorder, p, (dtypes or {}).get(p.name), function.__name__)
    if not arguments:
        raise BadSignature(f"{function.__name__}: a plan needs inputs")
    with _recording():
        result = function(**arguments)
    if not isinstance(result, dict) or not result:
        raise BadOutputs(
            f"{function.__name__} returned no dictionary", got=type(result).__name__, expected='{"name": value, …}'
        )
    outputs = []
    for name, value in result.items():
        if not isinstance(value, PlanValue) or value.recorder is not recorder or value.what == "number":
            raise BadOutputs(
                f"{function.__name__}: output {name!r} is no matrix or vector of the plan", got=repr(value)[:60]
            )
        if recorder.steps[value.step].op == "input":
            raise BadOutputs(
                f"{function.__name__}: output {name!r} is an input", hint="nothing computes it: leave it out"
            )
        check_name(name, f"{function.__name__}: output")
        outputs.append(PlanOutput(name, value.step))
    return _pruned(function.__name__, recorder, outputs, inspect.getdoc(function) or "")


def _input(recorder: Recorder, p: inspect.Parameter, dtype: str | None, name: str) -> PlanValue:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise BadSignature(f"{name}: *args and **kwargs", expected="one parameter per input")
    check_input_name(p.name)
    number = p.annotation in (float, int) or p.default is not p.empty
    default: Attr = "" if p.default is p.empty else p.default
    if default != "" and (isinstance(default, bool) or not isinstance(default, (int, float))):
        raise BadSignature(f"{name}: parameter {p.name}: the default is not a number", got=repr(p.default))
    what = "scalar" if number else "int tensor" if dtype == "int" else "tensor"
    step = recorder.add("input", name=p.name, what=what, default=default)
    return PlanValue(recorder, step, "number" if number else "unknown", DType.INT if dtype == "int" else None)


def _pruned(name: str, recorder: Recorder, outputs: Sequence[PlanOutput], doc: str) -> Plan:
    """Only steps that reach an output (every input stays); programs compute only the results that are used."""
    live: set[int] = {i for i, s in enumerate(recorder.steps) if s.op == "input"}
    stack = [o.step for o in outputs]
    while stack:
        i = stack.pop()
        if i not in live:
            live.add(i)
            stack.extend(recorder.steps[i].args)
    used: dict[int, list[str]] = {}
    for i in sorted(live):
        if recorder.steps[i].op == "result":
            used.setdefault(recorder.steps[i].args[0], []).append(str(recorder.steps[i].attr("name")))
    place: dict[int, int] = {}
    steps: list[Step] = []
    programs: list[EpilogueProgram] = []
    for i in sorted(live):
        step = replace(recorder.steps[i], args=tuple(place[a] for a in recorder.steps[i].args))
        if step.op == "call":
            program = recorder.programs[int(step.attr("program"))]
            if len(used[i]) < len(program.outputs):
                program = program.select(used[i])
            if program not in programs:
                programs.append(program)
            step = replace(step, attrs=tuple(sorted({**dict(step.attrs), "program": programs.index(program)}.items())))
        place[i] = len(steps)
        steps.append(step)
    if not programs:
        raise AuthoringError(f"{name}: a plan that calls no program")
    return Plan(name, tuple(programs), tuple(steps), tuple(PlanOutput(o.name, place[o.step]) for o in outputs), doc)
