"""`Plan`: several programs in a straight line, as data.

    Step    one thing that happens: an input, a program call, one of its results, a view, or arithmetic on vectors
    Plan    inputs, programs, steps, outputs; JSON both ways; digest; cost; reference
    execute run the steps, with a function that runs one program: the reference and every backend share it

Steps: `input`, `const`, `call` (a program; its results follow as `result` steps), `mT`, `slice` (columns i:j), `view`
(m, n), `rows`, `columns`, `map` (one operation of class 1 on vectors or numbers). A result that no step uses is not
computed. `coda.plan_tracing` makes a plan from a function. Nothing here imports torch before a plan is executed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coda.errors import (
    CodaError,
    DTypeUnsupported,
    FormatError,
    MissingOperand,
    PlanError,
    ShapeMismatch,
    UnknownOperand,
    near,
    shown,
)
from coda.primitives.types import Attr, DType
from coda.primitives.value import OPS, encode
from coda.problem import Problem, compute_dtype
from coda.program import EpilogueProgram, check_name, encoded_attr, exact_keys, parse_json

if TYPE_CHECKING:
    from coda.explain import Cost

FORMAT = "coda.plan/1"
MAX_STEPS = 256
_IN_PROGRAMS = ("const", "pair", "unpair", "row_index", "column_index", "rows", "columns")
PLAN_MAPS = frozenset(name for name, op in OPS.items() if op.primitive_class == 1 and name not in _IN_PROGRAMS)
"""Operations on vectors and numbers of a plan."""

_WHOLE = ("add", "sub", "mul", "floordiv", "mod", "neg", "minimum", "maximum", "abs")
"""Operations that give an integer where every argument is one, and else none."""

RunProgram = Callable[[EpilogueProgram, Mapping[str, Any]], Mapping[str, Any]]
"""Runs one program on tensors by name (`a`, `b`, operands); returns its outputs by name."""


@dataclass(frozen=True)
class Step:
    """One step; `args` are earlier steps, `attrs` is sorted by name."""

    op: str
    args: tuple[int, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()

    def attr(self, name: str) -> Attr:
        """One attribute by name."""
        return dict(self.attrs)[name]


@dataclass(frozen=True)
class PlanOutput:
    """One result of the plan."""

    name: str
    step: int


@dataclass(frozen=True)
class Plan:
    """A whole operator: GEMMs with epilogues, pointwise programs, and what lies between."""

    name: str
    programs: tuple[EpilogueProgram, ...]
    steps: tuple[Step, ...]
    outputs: tuple[PlanOutput, ...]
    doc: str = field(default="", compare=False)

    kind = "plan"

    @property
    def inputs(self) -> tuple[tuple[str, str, float | int | None], ...]:
        """Name, what it is ("tensor", "int tensor" or "scalar") and default of every input, in order."""
        found = []
        for step in self.steps:
            if step.op == "input":
                default = step.attr("default")
                found.append((str(step.attr("name")), str(step.attr("what")), None if default == "" else default))
        return tuple(found)  # type: ignore[arg-type]

    @property
    def gemms(self) -> int:
        """How many GEMMs run."""
        return sum(s.op == "call" and self.programs[int(s.attr("program"))].kind == "epilogue" for s in self.steps)

    @functools.cached_property
    def lengths(self) -> frozenset[str]:
        """Names of the inputs that must be integers: they are, or enter by whole arithmetic, a bound of a slice or a view."""
        return self._bounding(_WHOLE)

    @functools.cached_property
    def deciding(self) -> frozenset[str]:
        """Names of the inputs whose value decides, through whatever arithmetic, how much is sliced or viewed."""
        return self._bounding(None)

    def _bounding(self, maps: Sequence[str] | None) -> frozenset[str]:
        """Names of the inputs that reach a bound of a slice or a view by these maps alone, or by any."""
        into: list[frozenset[str]] = []
        found: frozenset[str] = frozenset()
        for step in self.steps:
            here: frozenset[str] = frozenset()
            if step.op == "input":
                here = frozenset({str(step.attr("name"))})
            elif step.op == "map" and (maps is None or step.attr("name") in maps):
                here = here.union(*(into[i] for i in step.args))
            elif step.op in ("slice", "view"):
                found = found.union(*(into[i] for i in step.args[1:]))
            into.append(here)
        return found

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of what the plan computes: its steps by structure, its programs by digest; names of inputs and outputs in."""
        hashes: list[str] = []
        for step in self.steps:
            attrs = ",".join(f"{k}={encode(v)}" for k, v in step.attrs if not (step.op == "call" and k == "program"))
            version = ""
            if step.op == "call":
                version = self.programs[int(step.attr("program"))].digest
            elif step.op == "map":
                version = str(OPS[str(step.attr("name"))].version)
            text = f"{step.op}/{version}({','.join(hashes[i] for i in step.args)};{attrs})"
            hashes.append(hashlib.sha256(text.encode()).hexdigest())
        lines = [FORMAT, *sorted(h for h, s in zip(hashes, self.steps, strict=True) if s.op == "input")]
        lines += [f"out {o.name} {hashes[o.step]}" for o in sorted(self.outputs, key=lambda o: o.name)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    # JSON -----------------------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, versioned."""
        return {
            "format": FORMAT,
            "name": self.name,
            "doc": self.doc,
            "programs": [p.to_dict() for p in self.programs],
            "steps": [
                {"op": s.op, "args": list(s.args), "attrs": {k: encode(v) for k, v in s.attrs}} for s in self.steps
            ],
            "outputs": [{"name": o.name, "step": o.step} for o in self.outputs],
        }

    def to_json(self) -> str:
        """The plan as text; `from_json` gives an equal one."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan. Raises `FormatError` for anything that is not one, of this version, well formed."""
        return cls.from_dict(parse_json(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read a plan from plain JSON; strict, see `from_json`."""
        if data.get("format") != FORMAT:
            raise FormatError("not a plan of this version", got=repr(data.get("format")), expected=repr(FORMAT))
        try:
            return _read(data)
        except FormatError:
            raise
        except CodaError as error:
            raise FormatError(
                f"the plan is not well formed: {error.what}", got=error.got, expected=error.expected
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise FormatError("the plan is malformed", got=f"{type(error).__name__}: {error}") from error

    # what others compute of it --------------------------------------------------------------------------------
    def bind(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Call arguments by name, defaults filled in. Raises `UnknownOperand` or `MissingOperand`, and `DTypeUnsupported` or
        `ShapeMismatch` for a number that is none."""
        names = [name for name, _, _ in self.inputs]
        if len(args) > len(names):
            raise UnknownOperand(
                f"{self.name}: too many arguments", got=len(args), expected=f"{len(names)}: {', '.join(names)}"
            )
        bound = dict(zip(names, args, strict=False))
        for name, value in named.items():
            if name not in names or name in bound:
                twice = "was given twice" if name in bound else "is no input"
                raise UnknownOperand(
                    f"{self.name}: {name!r} {twice}", expected=", ".join(names), hint=near(name, names)
                )
            bound[name] = value
        for name, _, default in self.inputs:
            if name not in bound and default is None:
                raise MissingOperand(f"{self.name}: {name} is missing", expected=", ".join(names))
            bound.setdefault(name, default)
        for name, what, _ in self.inputs:
            if what == "scalar" or name in self.lengths:
                check_number(f"{self.name}: {name}", bound[name], whole=name in self.lengths)
        return bound

    def reference(self, *args: Any, dtype: Any = None, **named: Any) -> dict[str, Any]:
        """Every output by name, computed in `dtype` (torch.float64 if None) without any rounding."""
        import torch

        from coda.evaluate import reference

        target = dtype or torch.float64
        bound = self.bind(args, named)
        return execute(self, bound, lambda p, tensors: reference(p, (), tensors, target), target, rounds=False)

    def cost(self, shapes: Mapping[str, tuple[int, ...]], dtype: str = "bfloat16") -> Cost:
        """The sum over its calls for inputs of these shapes by name (scalars may be left out), matrices in `dtype`.

        Intermediate results count as written by one call and read by the next: GEMMs have to pass them through memory.
        Raises `KeyError` for a tensor whose shape is missing.
        """
        import torch

        from coda.explain import Cost, cost

        total = [Cost(0, 0, 0, 0)]

        def call(program: EpilogueProgram, tensors: Mapping[str, Any]) -> dict[str, Any]:
            m, n, k = program.sizes({name: tuple(x.shape) for name, x in tensors.items() if hasattr(x, "shape")})
            total[0] += cost(program, Problem(m, n, k, dtype))
            shape = {o.name: program.output_shape(o.name, m, n) for o in program.outputs}
            return {
                name: torch.empty(s, dtype=getattr(torch, program.output_dtype(name, dtype)), device="meta")
                for name, s in shape.items()
            }

        def empty(name: str, what: str, default: int | float | None) -> Any:
            if what == "scalar":
                return 1.0 if default is None else default
            kind = (
                torch.int64
                if what == "int tensor"
                else getattr(torch, dtype if len(shapes[name]) == 2 else compute_dtype(dtype))
            )
            return torch.empty(shapes[name], dtype=kind, device="meta")

        inputs = {name: empty(name, what, default) for name, what, default in self.inputs}
        execute(self, inputs, call, torch.float32, rounds=False)
        return total[0]

    def explain(self) -> str:
        """Every step in one line, then every program."""
        lines = [f"{self.name}: plan of {self.gemms} GEMMs, digest {self.digest[:12]}"]
        if self.doc:
            lines.append(f"  {self.doc.splitlines()[0]}")
        lines += [f"  %{i} = {_spell(self, s)}" for i, s in enumerate(self.steps)]
        lines.append("  return " + ", ".join(f"{o.name} = %{o.step}" for o in self.outputs))
        return "\n\n".join(["\n".join(lines), *(p.explain() for p in self.programs)])


def _spell(plan: Plan, step: Step) -> str:
    args = [f"%{i}" for i in step.args]
    attrs = dict(step.attrs)
    match step.op:
        case "input":
            return f"{attrs['what']} {attrs['name']}" + ("" if attrs["default"] == "" else f" = {attrs['default']}")
        case "const":
            return str(attrs["value"])
        case "call":
            names = str(attrs["names"]).split(",")
            inside = ", ".join(f"{name}={arg}" for name, arg in zip(names, args, strict=True))
            return f"{plan.programs[int(attrs['program'])].name}({inside})"
        case "result":
            return f"{args[0]}.{attrs['name']}"
        case "map":
            return f"{attrs['name']}({', '.join(args)})"
        case _:
            return f"{step.op}({', '.join(args)})"


def _read(data: Mapping[str, Any]) -> Plan:
    exact_keys(data, ("format", "name", "doc", "programs", "steps", "outputs"), "plan")
    programs = tuple(EpilogueProgram.from_dict(p) for p in data["programs"])
    if not data["outputs"] or len(data["steps"]) > MAX_STEPS:
        raise FormatError(
            "plan: no outputs, or too many steps", got=len(data["steps"]), expected=f"at most {MAX_STEPS}"
        )
    steps: list[Step] = []
    for position, raw in enumerate(data["steps"]):
        exact_keys(raw, ("op", "args", "attrs"), f"step {position}")
        attrs = {name: encoded_attr(value) for name, value in raw["attrs"].items()}
        step = Step(raw["op"], tuple(raw["args"]), tuple(sorted(attrs.items())))
        if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < position for i in step.args):
            raise FormatError(f"step {position}: an argument is not an earlier step", got=raw["args"])
        _check_step(position, step, steps, programs)
        steps.append(step)
    outputs = tuple(PlanOutput(**exact_keys(o, ("name", "step"), "output")) for o in data["outputs"])
    for o in outputs:
        check_name(o.name, "output")
        if isinstance(o.step, bool) or not 0 <= o.step < len(steps):
            raise FormatError(f"output {o.name!r}: no such step", got=o.step)
    if len({o.name for o in outputs}) != len(outputs):
        raise FormatError("plan: an output name is used twice")
    return Plan(str(data["name"]), programs, tuple(steps), outputs, str(data["doc"]))


ATTRIBUTES: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "input": (0, ("default", "name", "what")),
    "const": (0, ("value",)),
    "call": (None, ("names", "program")),
    "result": (1, ("name",)),
    "mT": (1, ()),
    "slice": (3, ()),
    "view": (3, ()),
    "rows": (1, ()),
    "columns": (1, ()),
}
"""Number of arguments and names of attributes of each kind of step; a `map` has those of its operation."""


def _check_step(position: int, step: Step, steps: Sequence[Step], programs: Sequence[EpilogueProgram]) -> None:
    def bad(what: str, got: object = None) -> FormatError:
        return FormatError(f"step {position}: {what}", got=got)

    attrs = dict(step.attrs)
    if step.op != "map":
        count, names = ATTRIBUTES.get(step.op, (-1, ()))
        if count not in (None, len(step.args)) or tuple(sorted(attrs)) != names:
            raise bad("unknown or malformed", step.op)
    if step.op != "result" and any(steps[i].op == "call" for i in step.args):
        raise bad("a call is used as a tensor", step.op)
    if step.op == "input":
        check_input_name(str(attrs["name"]))
        if attrs["what"] not in ("tensor", "int tensor", "scalar"):
            raise bad("input", attrs)
    elif step.op == "call":
        program = programs[int(attrs["program"])]
        given = str(attrs["names"]).split(",")
        if sorted(given) != sorted(program.argument_names) or len(given) != len(step.args):
            raise bad(f"arguments of {program.name}", given)
    elif step.op == "result":
        call = steps[step.args[0]]
        if call.op != "call" or attrs["name"] not in {o.name for o in programs[int(call.attr("program"))].outputs}:
            raise bad("no such result", attrs.get("name"))
    elif step.op == "map" and (attrs.get("name") not in PLAN_MAPS or not step.args):
        raise bad("not a map operation", attrs.get("name"))


def check_number(what: str, x: Any, *, whole: bool) -> None:
    """Raise `DTypeUnsupported` or `ShapeMismatch` for what is neither a number (`whole`: an integer) nor a 0-d tensor of one."""
    if type(x) is int or (type(x) is float and not whole):
        return
    import torch

    expected = "an int" if whole else "a number or a 0-d tensor"
    if isinstance(x, torch.Tensor):
        if x.ndim:
            raise ShapeMismatch(what, got=tuple(x.shape), expected=expected)
        if whole and (x.dtype is torch.bool or x.is_floating_point() or x.is_complex()):
            raise DTypeUnsupported(what, got=f"a 0-d tensor of {x.dtype}", expected=expected)
        return
    kinds = (int, torch.SymInt) if whole else (int, float, torch.SymInt, torch.SymFloat)
    if isinstance(x, bool) or not isinstance(x, kinds):
        raise DTypeUnsupported(what, got=shown(x), expected=expected)


def check_input_name(name: str) -> None:
    """Raise `BadSignature` for a name that an input of a plan may not have; unlike operands, `a` and `b` are fine."""
    if name not in ("a", "b"):
        check_name(name, "input")


# execution ----------------------------------------------------------------------------------------------------------

_HOST: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "neg": operator.neg,
    "minimum": min,
    "maximum": max,
    "abs": abs,
    "to_float": float,
}
"""Arithmetic on sizes and numbers, which stays on the host."""


def execute(
    plan: Plan,
    inputs: Mapping[str, Any],
    run: RunProgram,
    compute: Any,
    *,
    rounds: bool = True,
    watch: Callable[[int, Any], None] | None = None,
) -> dict[str, Any]:
    """Run the steps and return every output by name.

    `compute` is the torch dtype of vector arithmetic; `rounds` whether a `cast` rounds; `watch` hears of every step's number and
    value. Raises what `run` raises, and `ShapeMismatch` for a view, slice or vector operation that does not fit.
    """
    values: list[Any] = []
    for step in plan.steps:
        args = [values[i] for i in step.args]
        attrs = dict(step.attrs)
        match step.op:
            case "input":
                values.append(inputs[str(attrs["name"])])
            case "const":
                values.append(attrs["value"])
            case "call":
                names = str(attrs["names"]).split(",")
                values.append(run(plan.programs[int(attrs["program"])], dict(zip(names, args, strict=True))))
            case "result":
                values.append(args[0][attrs["name"]])
            case "map":
                values.append(map_step(plan, attrs, args, compute, rounds))
            case _:
                values.append(view_step(plan, step.op, args))
        if watch is not None:
            watch(len(values) - 1, values[-1])
    return {o.name: values[o.step] for o in plan.outputs}


def view_step(plan: Plan, op: str, args: Sequence[Any]) -> Any:
    """One of `mT`, `slice`, `view`, `rows` and `columns`. Raises `ShapeMismatch`."""
    x = args[0]
    if getattr(x, "ndim", 0) != 2:
        raise ShapeMismatch(f"{plan.name}: .{op} of something that is not a matrix", got=getattr(x, "shape", x))
    for bound in args[1:]:
        if type(bound) is not int:
            check_number(f"{plan.name}: a bound of .{op}", bound, whole=True)
    match op:
        case "mT":
            return x.mT
        case "rows":
            return x.shape[0]
        case "columns":
            return x.shape[1]
        case "slice":
            _, start, stop = args
            if not 0 <= start <= stop <= x.shape[1]:
                raise ShapeMismatch(f"{plan.name}: columns [{start}:{stop}]", got=f"{x.shape[1]} columns")
            return x[:, start:stop]
        case _:
            _, m, n = args
            if m * n != x.shape[0] * x.shape[1]:
                raise ShapeMismatch(f"{plan.name}: view({m}, {n})", got=tuple(x.shape), expected=f"{m * n} elements")
            return x.reshape(m, n)


def map_step(plan: Plan, attrs: Mapping[str, Attr], args: Sequence[Any], compute: Any, rounds: bool) -> Any:
    """Arithmetic on vectors or numbers. Raises `PlanError` or `ShapeMismatch`."""
    import torch

    from coda.evaluate import Evaluation

    name = str(attrs["name"])
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if not tensors:
        if name not in _HOST:
            raise PlanError(f"{plan.name}: {name} of plain numbers", hint="use a vector, or compute it in a program")
        return _HOST[name](*args)
    if any(x.ndim > 1 for x in tensors):
        raise ShapeMismatch(
            f"{plan.name}: arithmetic on a matrix",
            got=[tuple(x.shape) for x in tensors],
            hint="write a @coda.pointwise program",
        )
    lengths = [x.shape[0] for x in tensors if x.ndim == 1]
    if any(length != lengths[0] for length in lengths):
        raise ShapeMismatch(f"{plan.name}: {name} of vectors of different lengths", got=lengths)
    op = OPS[name]
    lifted = [_lifted(x, tensors[0].device, compute) for x in args]
    numeric = [x for i, x in enumerate(lifted) if x.dtype is not torch.bool and i not in op.exact]
    if op.takes is DType.FLOAT or (op.takes is None and any(x.is_floating_point() for x in numeric)):
        lifted = [x if x.dtype is torch.bool or x.is_floating_point() else x.to(compute) for x in lifted]
    e = Evaluation(torch, lengths[0] if lengths else 1, 0, compute, tensors[0].device, rounds)
    return op.reference(e, *lifted, **{k: v for k, v in attrs.items() if k != "name"})


def _lifted(x: Any, device: Any, compute: Any) -> Any:
    import torch

    if isinstance(x, torch.Tensor):
        return x.to(compute) if x.is_floating_point() else x if x.dtype is torch.bool else x.to(torch.int64)
    dtype = torch.bool if isinstance(x, bool) else torch.int64 if isinstance(x, int) else compute
    return torch.tensor(x, dtype=dtype, device=device)
