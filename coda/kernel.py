"""What the decorators return: kernels that can be called on tensors, or inside a plan.

    epilogue, pointwise, plan   the decorators
    Epilogue, Pointwise         a function, its program, and its call
    PlanKernel                  a plan and its call
    from_json                   a kernel from a kept program: no author's code is run
    matmul                      the program with an empty epilogue

A call is specialised here (integer operands, compile-time constants) and run by `coda.call`. torch is imported with the first
call, not with coda.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from coda import handles, plan_tracing
from coda.arguments import arguments
from coda.backends.registry import MODULES
from coda.errors import (
    BadSchedule,
    BadSignature,
    DeviceMismatch,
    OverlappingOutput,
    PlanError,
    ShapeMismatch,
    UnknownBackend,
    UnknownOperand,
    UnknownResult,
    near,
    shown,
)
from coda.plan import Plan
from coda.plan_tracing import PlanValue, operand_dtypes, record_call, trace_plan
from coda.primitives.types import Kind
from coda.problem import Schedule
from coda.program import EpilogueProgram, parse_json
from coda.tracing import Signature, signature, trace

if TYPE_CHECKING:
    from coda.call import Calls
    from coda.replay import PlanCalls

Data = TypeVar("Data", bound=EpilogueProgram | Plan)


class Kernel(Generic[Data]):
    """A callable with a `program`. `name`, `__doc__` and `outputs` come from it."""

    def __init__(self, program: Data, places: Sequence[str]) -> None:
        self.program: Data = program
        self.places = tuple(places)
        """Names of the arguments that may be given by position."""
        self.name = program.name
        self.__name__ = program.name
        self.__doc__ = program.doc
        self.outputs = tuple(o.name for o in program.outputs)
        """Names of the results, in order."""
        self.result = result_type(program.name, self.outputs)
        self.handle = handles.take(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name} {self.program.digest[:12]}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:  # nobody changes a kernel: as with a function, a copy is the same one
        return self

    def specialised(self, dtypes: Mapping[str, str], constants: Mapping[str, int | bool]) -> EpilogueProgram | Plan:
        """The program for arguments that hold "int" or "float" by name, and for compile-time constants."""
        raise NotImplementedError

    def of_call(self, args: Sequence[Any], operands: Mapping[str, Any]) -> tuple[Data, dict[str, Any]]:
        """The program that a call runs, and its arguments by name: defaults filled in, compile-time constants taken out.
        Raises a `CallError` for names that do not fit."""
        raise NotImplementedError

    @property
    def gemms(self) -> int:
        """How many GEMMs a call runs."""
        raise NotImplementedError

    def reference(self, *args: Any, dtype: Any = None, **operands: Any) -> dict[str, Any]:
        """Every output by name, in `dtype` (fp64 if None), unrounded. Arguments and errors as in a call, shapes as the operands
        say: a Tile is (M, width·N), a RowVector (width·N,), a ColVector (M,)."""
        raise NotImplementedError


class _Programmed(Kernel[EpilogueProgram]):
    """A kernel of one program. Made from a function, or (`function=None`) from kept data."""

    def __init__(
        self, program: EpilogueProgram, function: Callable[..., Any] | None = None, sign: Signature | None = None
    ) -> None:
        super().__init__(program, ("a", "b") if program.kind == "epilogue" else program.argument_names)
        self._function, self._sign = function, sign
        self._special: dict[Any, EpilogueProgram] = {(): program}
        self._has_constants = bool(sign and sign.constants)
        self._calls: Calls | None = None

    @property
    def __signature__(self) -> inspect.Signature:
        """Of a call, for `help` and editors: `__call__` itself takes whatever it is given, and says what does not fit."""
        given = {o.name: o.default for o in self.program.operands if o.default is not None}
        given |= {name: default for name, _, default in (self._sign.constants if self._sign else ())}
        by_place = list(itertools.takewhile(lambda n: n not in given, self.places))
        by_name = [n for n in self.program.argument_names if n not in by_place]
        kind = inspect.Parameter
        return inspect.Signature(
            [kind(n, kind.POSITIONAL_OR_KEYWORD) for n in by_place]
            + [kind(n, kind.KEYWORD_ONLY, default=given.get(n, kind.empty)) for n in dict.fromkeys([*by_name, *given])]
            + [kind(n, kind.KEYWORD_ONLY, default=None) for n in ("backend", "config", "out")]
        )

    @property
    def gemms(self) -> int:
        return int(self.program.kind == "epilogue")

    def reference(self, *args: Any, dtype: Any = None, **operands: Any) -> dict[str, Any]:
        program, given = self.of_call(args, operands)
        return program.reference(dtype=dtype, **given)

    def of_call(self, args: Sequence[Any], operands: Mapping[str, Any]) -> tuple[EpilogueProgram, dict[str, Any]]:
        operands = dict(operands)
        constants = self._constants(operands)
        return self._of_call(args, operands, constants)

    def _of_call(
        self, args: Sequence[Any], operands: Mapping[str, Any], constants: Mapping[str, int | bool]
    ) -> tuple[EpilogueProgram, dict[str, Any]]:
        from coda.binding import held

        given = arguments(self.program, args, operands)
        return self.specialised(held(given), constants), given

    def specialise(
        self, dtypes: Mapping[str, str] | None = None, constants: Mapping[str, int | bool] | None = None
    ) -> EpilogueProgram:
        """The program for these operand dtypes ("int" or "float" by name) and compile-time constants."""
        wanted = {name: d for name, d in (dtypes or {}).items() if d != self.program.operand(name).dtype}
        key = (*sorted(wanted.items()), *sorted((constants or {}).items()))
        if key not in self._special:
            if self._function is None or self._sign is None:
                return self.program  # kept data is what it is: binding reports a dtype that does not fit
            fast = self.program.fast_math
            self._special[key] = trace(self._function, self._sign, fast_math=fast, dtypes=dtypes, constants=constants)
        return self._special[key]

    def specialised(self, dtypes: Mapping[str, str], constants: Mapping[str, int | bool]) -> EpilogueProgram:
        vectors = {o.name for o in self.program.operands if o.kind is not Kind.TILE}
        return self.specialise({name: d for name, d in dtypes.items() if name in vectors}, constants)

    def _constants(self, operands: dict[str, Any]) -> dict[str, int | bool]:
        """Take the compile-time constants out of the keywords."""
        found: dict[str, int | bool] = {}
        for name, kind, default in self._sign.constants if self._sign else ():
            if name in operands:
                value = operands.pop(name)
                if type(value) is not kind:
                    raise UnknownOperand(
                        f"{self.name}: {name} is a compile-time constant", got=repr(value), expected=kind.__name__
                    )
                if value != default:
                    found[name] = kind(value)
        return found

    def __call__(
        self,
        *args: Any,
        backend: str | None = None,
        config: Schedule | None = None,
        out: Mapping[str, Any] | None = None,
        **operands: Any,
    ) -> Any:
        """Run on tensors of any strides: `a` (M, K) and `b` (K, N) of an epilogue, or the operands of a pointwise program, in order or
        by name, an epilogue's operands by name. Returns a named tuple of the outputs.

        `out` gives tensors to write into by output name. Raises a `CallError` or a `BackendError`.
        """
        constants = tuple(self._constants(operands).items()) if self._has_constants else ()
        if plan_tracing.underway and any(isinstance(x, PlanValue) for x in (*args, *operands.values())):
            _check_config(config)
            options = {"backend": backend, "config": config, "out": out}
            if given := [name for name, value in options.items() if value is not None]:
                hint = "give backend= and out= to the call of the plan; every program of it finds its own schedule"
                raise PlanError(f"{self.name}: {', '.join(given)} of a call inside a plan", hint=hint)
            return self._record(args, operands, dict(constants))
        import torch  # with the first call, not with coda

        if torch.compiler.is_dynamo_compiling():
            return self._traced(args, operands, backend, config, out, constants)
        if self._calls is not None:
            results = self._calls.again(args, operands, backend, config, out, constants)
            if results is not None:
                return tuple.__new__(self.result, results)
        return self._checked(args, operands, backend, config, out, constants)

    def _checked(
        self,
        args: tuple[Any, ...],
        operands: dict[str, Any],
        backend: str | None,
        config: Schedule | None,
        out: Mapping[str, Any] | None,
        constants: tuple[tuple[str, int | bool], ...],
    ) -> Any:
        """A call that is not like the latest ones."""
        if config is not None:
            _check_config(config)
        check_options(self.name, backend, out)
        if self._calls is None:
            from coda.call import Calls

            self._calls = Calls()
        program = lambda: self._of_call(args, operands, dict(constants))[0]  # noqa: E731
        results = self._calls(program, args, operands, backend, config, out, constants)
        if results is None:
            return self._traced(args, operands, backend, config, out, constants)
        return self.result._make(results)

    def _traced(
        self,
        args: tuple[Any, ...],
        operands: dict[str, Any],
        backend: str | None,
        config: Schedule | None,
        out: Mapping[str, Any] | None,
        constants: tuple[tuple[str, int | bool], ...],
    ) -> Any:
        """A call that belongs to PyTorch's dispatcher."""
        from coda.torch_operator import traced

        if config is not None:
            _check_config(config)
        return traced(self, args, operands, backend, config, out, constants)

    def _record(self, args: Sequence[Any], operands: Mapping[str, Any], constants: Mapping[str, int | bool]) -> Any:
        bound = arguments(self.program, args, operands)
        return record_call(self.specialise(operand_dtypes(self.program, bound), constants), bound)


class Epilogue(_Programmed):
    """One GEMM and what happens to its result."""


class Pointwise(_Programmed):
    """The same vocabulary without a GEMM; the first tile is (M, N)."""


class PlanKernel(Kernel[Plan]):
    """Several programs in a straight line."""

    def __init__(self, program: Plan, function: Callable[..., Any] | None = None) -> None:
        super().__init__(program, [name for name, _, _ in program.inputs])
        self._function = function
        self._special: dict[Any, Plan] = {(): program}
        self._calls: PlanCalls | None = None

    @property
    def gemms(self) -> int:
        return self.program.gemms

    def specialise(self, dtypes: Mapping[str, str] | None = None) -> Plan:
        """The plan for inputs that hold integers ("int" by name)."""
        known = {name for name, _, _ in self.program.inputs}
        key = tuple(sorted((n, d) for n, d in (dtypes or {}).items() if d == "int" and n in known))
        if key not in self._special and self._function is not None:
            self._special[key] = trace_plan(self._function, dict(key))
        return self._special.get(key, self.program)

    def reference(self, *args: Any, dtype: Any = None, **operands: Any) -> dict[str, Any]:
        plan, _ = self.of_call(args, operands)
        return plan.reference(*args, dtype=dtype, **operands)

    def of_call(self, args: Sequence[Any], operands: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
        given = self.program.bind(args, operands)
        return self._specialised(given), given

    def __call__(
        self,
        *args: Any,
        backend: str | None = None,
        config: Schedule | None = None,
        out: Mapping[str, Any] | None = None,
        **operands: Any,
    ) -> Any:
        """Run on the inputs in order or by name; returns a named tuple of the outputs. `config` applies to every GEMM.

        Raises a `CallError` or a `BackendError`.
        """
        import torch

        compiling = torch.compiler.is_dynamo_compiling()
        if not compiling and out is None and self._calls is not None:
            warm = self._calls.again(args, operands, backend, config)
            if warm is not None:
                return tuple.__new__(self.result, warm)
        if config is not None:
            _check_config(config)
        if compiling:
            from coda.torch_operator import traced_plan

            return traced_plan(self, args, operands, backend, config, out)
        check_options(self.name, backend, out)
        if self._calls is None:
            from coda.replay import PlanCalls

            self._calls = PlanCalls(self.program)
        if out:
            self._check_targets(out, self.program.bind(args, operands))
        results = self._calls(self._specialised, args, operands, backend, config)
        if results is None:
            from coda.torch_operator import traced_plan

            return traced_plan(self, args, operands, backend, config, out)
        return self.result._make(self.written(results, out) if out else results)

    def specialised(self, dtypes: Mapping[str, str], constants: Mapping[str, int | bool]) -> Plan:
        return self.specialise(dtypes)

    def _specialised(self, bound: Mapping[str, Any]) -> Plan:
        from coda.binding import held

        return self.specialise(held(bound))

    def written(self, results: Sequence[Any], out: Mapping[str, Any]) -> list[Any]:
        """The results, those with a tensor in `out` copied there. Raises `ShapeMismatch`."""
        named = dict(zip(self.outputs, results, strict=True))
        for name, target in out.items():  # every one is checked before the first is written
            if tuple(target.shape) != tuple(named[name].shape) or target.dtype != named[name].dtype:
                got, expected = (f"{tuple(t.shape)} {t.dtype}" for t in (target, named[name]))
                raise ShapeMismatch(f"{self.name}: out={name!r}", got=got, expected=expected)
        return [out[n].copy_(t) if n in out else t for n, t in named.items()]

    def _check_targets(self, targets: Mapping[str, Any], bound: Mapping[str, Any]) -> None:
        """Names, types, devices and overlaps of `out`, before anything runs."""
        import torch

        from coda.binding import check_writable, extent

        inputs = {name: x for name, x in bound.items() if isinstance(x, torch.Tensor)}
        device = next(iter(inputs.values())).device
        seen: list[tuple[str, Any]] = list(inputs.items())
        for name, target in targets.items():
            if name not in self.outputs:
                raise UnknownOperand(f"{self.name} has no output {name!r}", expected=", ".join(self.outputs))
            if not isinstance(target, torch.Tensor) or target.device != device:
                got = str(target.device) if isinstance(target, torch.Tensor) else type(target).__name__
                raise DeviceMismatch(f"{self.name}: out={name!r}", got=got, expected=f"a tensor on {device}")
            check_writable(f"{self.name}: out={name!r}", target)
            low, high = extent(target)
            for other, x in seen:
                first, last = extent(x)
                if x.numel() and target.numel() and first < high and low < last:
                    raise OverlappingOutput(f"{self.name}: out={name!r} shares memory with {other}")
            seen.append((f"out={name!r}", target))


def _check_config(config: object) -> None:
    if config is not None and not isinstance(config, Schedule):
        raise BadSchedule("config is no schedule", got=shown(config), expected="coda.Schedule(…)")


def check_options(name: str, backend: object, out: object) -> None:
    """Raise `UnknownBackend` for a `backend=` that is no name, and `UnknownOperand` for an `out=` that names no output."""
    if backend is not None and not isinstance(backend, str):
        raise UnknownBackend(
            f"{name}: backend= takes a name",
            got=shown(backend),
            expected=", ".join(("auto", *MODULES)),
        )
    if out is not None and not isinstance(out, Mapping):
        raise UnknownOperand(
            f"{name}: out= takes tensors by output name", got=type(out).__name__, hint='out={"v": tensor}'
        )


@functools.cache
def result_type(name: str, outputs: tuple[str, ...]) -> Any:
    """The named tuple of a kernel's results: `result.dz`, `result["dz"]`, or in order."""
    made = _named_tuple("".join(part.capitalize() for part in name.split("_")) + "Result", outputs)
    # on the class itself: torch.compile and pytrees take for a named tuple what has `tuple` as its only base
    made.__getitem__ = _by_name
    return made


def _named_tuple(title: str, names: tuple[str, ...]) -> Any:
    return collections.namedtuple(title if title.isidentifier() and not keyword.iskeyword(title) else "Result", names)


def _by_name(self: Any, key: Any) -> Any:
    """One result by its name, or as in any tuple by its place. Raises `UnknownResult`.

    Written for torch.compile too, which cannot look into `tuple.__getitem__`.
    """
    if not isinstance(key, str):
        return tuple(self)[key]
    if key not in self._fields:
        names = ", ".join(self._fields)
        raise UnknownResult(f"{type(self).__name__}: no result {key!r}", expected=names, hint=near(key, self._fields))
    return getattr(self, key)


# decorators ---------------------------------------------------------------------------------------------------------


def _programmed(function: Callable[..., Any], kind: Literal["epilogue", "pointwise"], fast_math: bool) -> Any:
    if not inspect.isfunction(function):
        raise BadSignature(f"@coda.{kind} decorates a function", got=type(function).__name__)
    sign = signature(function, kind)
    program = trace(function, sign, fast_math=fast_math)
    return (Epilogue if kind == "epilogue" else Pointwise)(program, function, sign)


def epilogue(function: Callable[..., Any] | None = None, *, fast_math: bool = False) -> Any:
    """Decorate `f(acc, operand: Tile, …) -> {"name": value}`: one GEMM and its epilogue. Traces once; returns an `Epilogue`.

    `fast_math=True` allows hardware approximations of the maths functions; it is part of the program.
    """
    if function is None:
        return lambda f: _programmed(f, "epilogue", fast_math)
    return _programmed(function, "epilogue", fast_math)


def pointwise(function: Callable[..., Any] | None = None, *, fast_math: bool = False) -> Any:
    """Decorate `f(x: Tile, …) -> {"name": value}`: the vocabulary of an epilogue without a GEMM; returns a `Pointwise`."""
    if function is None:
        return lambda f: _programmed(f, "pointwise", fast_math)
    return _programmed(function, "pointwise", fast_math)


def plan(function: Callable[..., Any]) -> PlanKernel:
    """Decorate a straight line of program calls over the inputs' names; returns a `PlanKernel`."""
    if not inspect.isfunction(function):
        raise BadSignature("@coda.plan decorates a function", got=type(function).__name__)
    return PlanKernel(trace_plan(function), function)


def from_json(text: str) -> Epilogue | Pointwise | PlanKernel:
    """The kernel of a kept program or plan. Raises `FormatError`."""
    data = parse_json(text)
    if str(data.get("format", "")).startswith("coda.plan/"):
        return PlanKernel(Plan.from_dict(data))
    program = EpilogueProgram.from_dict(data)
    return (Epilogue if program.kind == "epilogue" else Pointwise)(program)


def _matmul_epilogue(acc: Any) -> dict[str, Any]:
    """The product itself."""
    return {"product": acc}


_matmul: Epilogue = _programmed(_matmul_epilogue, "epilogue", False)


def matmul(a: Any, b: Any, **options: Any) -> Any:
    """The plain product of `a` (M, K) and `b` (K, N), on tensors or inside a plan; options as in a call."""
    return _matmul(a, b, **options).product
