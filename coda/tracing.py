"""From a decorated function to an `EpilogueProgram`.

    Signature   what the parameters say: operands, compile-time constants, run-time scalars
    trace       run the function once over traced values and keep what it returned

Whether a vector is int or float is known when a tensor is bound to it. Without one, every operand starts as a float;
where that fails because an operation needs an integer (`select_column(x, target)`), the operands it depends on become
integers and the function is traced again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coda.errors import AuthoringError, BadOutputs, BadSignature, CodaError, DTypeMismatch, shown
from coda.primitives.tile import Stored
from coda.primitives.types import DType, Kind
from coda.primitives.value import Graph, Value, tracing
from coda.primitives.vector import OperandSpec, Scalar
from coda.program import EpilogueProgram, Operand, Output, check_name, check_outputs

Constant = int | bool


@dataclass(frozen=True)
class Signature:
    """What the parameters of a decorated function say."""

    name: str
    kind: Literal["epilogue", "pointwise"]
    specs: tuple[tuple[str, OperandSpec, float | int | None], ...]
    """Name, what it is, default (of a scalar), in order."""
    constants: tuple[tuple[str, type, Constant], ...]
    """Name, `int` or `bool`, default: compile-time constants."""


def signature(function: Callable[..., Any], kind: Literal["epilogue", "pointwise"]) -> Signature:
    """Read the parameters. Raises `BadSignature`."""
    name = function.__name__
    where = f"{function.__code__.co_filename.rsplit('/', 1)[-1]}:{function.__code__.co_firstlineno}"
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    except CodaError:
        raise
    except Exception as error:
        raise BadSignature(
            f"{name}: an annotation cannot be evaluated", got=f"{type(error).__name__}: {error}", where=where
        ) from error
    if kind == "epilogue":
        if not parameters or parameters[0].name != "acc" or parameters[0].kind not in (0, 1):
            raise BadSignature(
                f"{name}: the first parameter of an epilogue is `acc`",
                got=parameters[0].name if parameters else "none",
                where=where,
            )
        parameters = parameters[1:]
    specs, constants = [], []
    for p in parameters:
        try:
            spec = _parameter(p)
            check_name(p.name, f"{name}: parameter")
        except BadSignature as error:
            raise BadSignature(
                error.what, got=error.got, expected=error.expected, hint=error.hint, where=where
            ) from None
        if isinstance(spec, type):
            constants.append((p.name, spec, p.default))
        else:
            specs.append((p.name, spec, None if p.default is p.empty else p.default))
    if kind == "pointwise" and not any(spec.kind is Kind.TILE for _, spec, _ in specs):
        raise BadSignature(
            f"{name}: a pointwise program needs a tile", expected="a parameter annotated `Tile`", where=where
        )
    return Signature(name, kind, tuple(specs), tuple(constants))


def _parameter(p: inspect.Parameter) -> OperandSpec | type:
    """The operand of a parameter, or `int`/`bool` for a compile-time constant."""
    known = "Tile, RowVector, ColVector, Scalar, float, int or bool"
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise BadSignature(
            f"parameter {p.name}: *args and **kwargs have no shape", expected=f"one parameter per operand: {known}"
        )
    annotation = p.annotation
    if annotation is p.empty:
        raise BadSignature(f"parameter {p.name} has no annotation", expected=known, hint=f"write `{p.name}: Tile`, say")
    if annotation in (int, bool):
        if not isinstance(p.default, (int, bool)) or isinstance(p.default, bool) is not (annotation is bool):
            raise BadSignature(
                f"parameter {p.name}: a compile-time constant needs a default",
                got=str(p),
                expected=f"{p.name}: {annotation.__name__} = …",
            )
        return annotation  # type: ignore[no-any-return]
    if annotation is float:
        annotation = Scalar
    if callable(annotation) and not isinstance(annotation, (type, OperandSpec)):
        annotation = annotation()
    if not isinstance(annotation, OperandSpec):
        raise BadSignature(
            f"parameter {p.name}: not an operand",
            got=repr(annotation),
            expected=known,
            hint=f"write `{p.name}: Tile`, say",
        )
    if p.default is not p.empty:
        if annotation.kind is not Kind.SCALAR:
            raise BadSignature(f"parameter {p.name}: only scalars have defaults", got=f"{p.name} = {p.default!r}")
        if isinstance(p.default, bool) or not isinstance(p.default, (int, float)):
            raise BadSignature(f"parameter {p.name}: the default is not a number", got=repr(p.default))
    return annotation


def trace(
    function: Callable[..., Any],
    sign: Signature,
    *,
    fast_math: bool = False,
    dtypes: Mapping[str, str] | None = None,
    constants: Mapping[str, Constant] | None = None,
) -> EpilogueProgram:
    """Run the function over traced values and return the program.

    `dtypes` fixes operands to "int" or "float" by name; the others are inferred. Raises an `AuthoringError`.
    """
    fixed = {name: DType(kind) for name, kind in (dtypes or {}).items()}
    for name, spec, _ in sign.specs:
        if spec.dtype is not None and fixed.setdefault(name, spec.dtype) is not spec.dtype:
            raise DTypeMismatch(f"{sign.name}: operand {name}", got=str(fixed[name]), expected=str(spec.dtype))
    as_int: frozenset[str] = frozenset()
    values = {name: default for name, _, default in sign.constants} | dict(constants or {})
    while True:
        operands = [_operand(name, spec, default, fixed, as_int) for name, spec, default in sign.specs]
        try:
            return _trace_once(function, sign, operands, values, fast_math)
        except DTypeMismatch as error:
            vectors = {o.name for o in operands if o.kind is not Kind.TILE and o.name not in fixed}
            more = (error.float_operands & vectors) - as_int
            if not more:
                raise
            as_int |= more


def _operand(
    name: str, spec: OperandSpec, default: float | int | None, fixed: Mapping[str, DType], as_int: frozenset[str]
) -> Operand:
    dtype = fixed.get(name, DType.INT if name in as_int else DType.FLOAT)
    if default is not None:
        default = int(default) if dtype is DType.INT else float(default)
    return Operand(name, spec.kind, spec.width, spec.period, dtype, default)


def _trace_once(
    function: Callable[..., Any],
    sign: Signature,
    operands: list[Operand],
    constants: Mapping[str, Constant],
    fast_math: bool,
) -> EpilogueProgram:
    graph = Graph()
    arguments: dict[str, Any] = dict(constants)
    if sign.kind == "epilogue":
        arguments["acc"] = Value(graph, graph.add("acc", (), {}))
    for operand in operands:
        arguments[operand.name] = Value(graph, graph.add("operand", (), operand.node_attrs()))
    with tracing(graph):
        try:
            result = _call(function, arguments)
        except RecursionError as error:
            raise AuthoringError(f"{sign.name}: recursion without end") from error
    outputs = _outputs(sign.name, graph, result, function)
    doc = inspect.getdoc(function) or ""
    whole = EpilogueProgram(sign.name, sign.kind, tuple(operands), tuple(graph.nodes), outputs, fast_math, doc)
    return whole.select(o.name for o in outputs)  # without the dead nodes


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    positional = [
        arguments.pop(p.name) for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_ONLY
    ]
    return function(*positional, **arguments)


def _outputs(name: str, graph: Graph, result: Any, function: Callable[..., Any]) -> tuple[Output, ...]:
    where = f"{function.__code__.co_filename.rsplit('/', 1)[-1]}:{function.__code__.co_firstlineno}"
    if not isinstance(result, dict):
        raise BadOutputs(
            f"{name} returned no dictionary",
            got="a traced value" if isinstance(result, Value) else type(result).__name__,
            expected='{"name": value, …}',
            hint="name what it returns, which is how a call's results are called",
            where=where,
        )
    outputs = []
    for key, value in result.items():
        if not isinstance(key, str):
            raise BadOutputs(f"{name}: an output name is not a string", got=repr(key), where=where)
        try:
            check_name(key, f"{name}: output")
        except BadSignature as error:
            raise BadOutputs(error.what, got=error.got, expected=error.expected, hint=error.hint, where=where) from None
        stored = value if isinstance(value, Stored) else Stored(value) if isinstance(value, Value) else None
        if stored is None or stored.value.graph is not graph:
            raise BadOutputs(
                f"{name}: output {key!r} is not a value of this program",
                got=shown(value),
                where=where,
            )
        outputs.append(Output(key, stored.value.index, stored.dtype, stored.saturate))
    check_outputs(name, graph, outputs)
    return tuple(outputs)
