"""Call arguments by name: which tensor or number belongs to which operand. No torch, no shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coda.errors import MissingOperand, UnknownOperand, near
from coda.primitives.types import DType, Kind
from coda.program import EpilogueProgram, Operand

_SPELLED = {Kind.TILE: "Tile", Kind.ROW: "RowVector", Kind.COL: "ColVector", Kind.SCALAR: "Scalar"}


def spelled(operand: Operand) -> str:
    """How an author declares it: "RowVector(width=2)"."""
    said = {
        "width": f"{float(operand.width):g}" if operand.width != 1 else "",
        "period": str(operand.period or ""),
        "dtype": '"int"' if operand.dtype is DType.INT else "",
    }
    options = ", ".join(f"{name}={value}" for name, value in said.items() if value)
    return f"{_SPELLED[operand.kind]}({options})" if options else _SPELLED[operand.kind]


def arguments(program: EpilogueProgram, args: Sequence[Any], operands: Mapping[str, Any]) -> dict[str, Any]:
    """Call arguments by name, defaults filled in. Raises `UnknownOperand` or `MissingOperand`."""
    names = program.argument_names[:2] if program.kind == "epilogue" else program.argument_names
    if len(args) > len(names):
        raise UnknownOperand(
            f"{program.name}: too many positional arguments",
            got=len(args),
            expected=f"at most {len(names)}: {', '.join(names)}",
            hint="pass operands by name" if program.kind == "epilogue" else None,
        )
    bound = dict(zip(names, args, strict=False))
    known = set(program.argument_names)
    for name, value in operands.items():
        if name in bound:
            raise UnknownOperand(f"{program.name}: {name} was given twice")
        if name not in known:
            raise UnknownOperand(
                f"{program.name} has no operand {name!r}", expected=", ".join(sorted(known)), hint=near(name, known)
            )
        bound[name] = value
    for o in program.operands:
        if o.default is not None:
            bound.setdefault(o.name, o.default)
    missing = [name for name in program.argument_names if name not in bound]
    if missing:
        given = [name for name in bound if name in operands or name in names[: len(args)]]
        kinds = {o.name: f"{o.name}: {spelled(o)}" for o in program.operands}
        raise MissingOperand(
            f"{program.name}: {', '.join(missing)} not given",
            got=", ".join(given) or "nothing",
            expected=", ".join(kinds.get(name, f"{name}: a matrix") for name in missing) + " as well",
            hint=f"pass {', '.join(f'{name}=…' for name in missing)}",
        )
    return bound
