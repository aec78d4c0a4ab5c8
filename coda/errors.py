"""Every error that coda raises on purpose: one class per mistake.

    CodaError
    ├── AuthoringError              while a program is traced
    │   ├── UnknownPrimitive        a name that is not in the closed list
    │   ├── TileLocalError          a finished vector mixed with a tile value
    │   ├── KindMismatch            a row with a column, a segment with another size, …
    │   ├── WidthMismatch           widths differ, or leave 1/2, 1, 2
    │   ├── DTypeMismatch           bool, int or float where another is needed
    │   ├── TracedControlFlow       `if`, `and`, `not`, `min`, `max`, `bool`, `in` on a traced value
    │   ├── BadArgument             an attribute outside its range (segment size, power, period, …)
    │   ├── BadSignature            parameters or annotations the decorator does not accept
    │   ├── BadOutputs              what the function returned cannot be stored
    │   ├── ProgramTooLarge         more than 512 nodes
    │   └── PlanError               something a plan may not do
    ├── FormatError                 JSON that is not a program, or not of a known version
    ├── CallError                   while tensors are bound to a program
    │   ├── UnknownOperand          a name that the program does not have
    │   ├── UnknownResult           a name that none of a call's results has
    │   ├── MissingOperand          a name that it has and the call lacks
    │   ├── ShapeMismatch           a tensor of the wrong shape
    │   ├── DTypeUnsupported        a tensor of a dtype that the operand does not take
    │   ├── DeviceMismatch          tensors on different devices
    │   ├── OverlappingOutput       `out=` overlaps an input or another output
    │   ├── UnknownProgram          a compiled graph names a program that this process does not have
    │   └── NotDifferentiable       a raw call that would drop a gradient
    ├── BackendError                while a backend is chosen, compiles or launches
    │   ├── UnknownBackend          no backend of that name
    │   ├── BackendUnavailable      a package or a device is missing
    │   ├── Unsupported             this backend cannot run this program on this problem
    │   ├── BadSchedule             a schedule that no kernel can have
    │   └── CompileError            the toolchain refused the generated code
    ├── LayoutError                 a weight layout that does not fit the tensor
    └── SettingError                a CODA_* variable with a bad value

A message says what happened, what was got, what was expected and what to do next.
"""

from __future__ import annotations

import difflib
import reprlib
import textwrap
from collections.abc import Iterable


class CodaError(Exception):
    """Base class. `what` happened, and where known: `got`, `expected`, `hint`, `where` ("file.py:12")."""

    code = "coda"

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
        where: str | None = None,
    ) -> None:
        self.what, self.got, self.expected, self.hint, self.where = what, got, expected, hint, where
        super().__init__(str(self))

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        facts = [
            f"{name} {value}" for name, value in (("got", self.got), ("expected", self.expected)) if value is not None
        ]
        text = f"{head}: {', '.join(facts)}" if facts else head
        return f"{text}\n  hint: {self.hint}" if self.hint else text

    def to_dict(self) -> dict[str, str | None]:
        """The message in parts, for records that cross a process border."""
        return {
            "code": self.code,
            "what": self.what,
            "got": None if self.got is None else str(self.got),
            "expected": None if self.expected is None else str(self.expected),
            "hint": self.hint,
            "where": self.where,
        }


class AuthoringError(CodaError):
    """A program cannot be traced."""

    code = "authoring"


class UnknownPrimitive(AuthoringError, AttributeError):
    """A name that is not among the primitives; the hint lists near ones.

    It is an `AttributeError` too, so that `from coda.primitives import x` and `hasattr` behave as usual.
    """

    code = "unknown-primitive"


class TileLocalError(AuthoringError):
    """A finished vector (the result of a reduction) was mixed with a value of the running tile."""

    code = "tile-local"


class KindMismatch(AuthoringError):
    """Two kinds that do not combine, or a kind that the primitive does not take."""

    code = "kind"


class WidthMismatch(AuthoringError):
    """Widths that differ, or a pair operation that would leave the widths 1/2, 1 and 2."""

    code = "width"


class DTypeMismatch(AuthoringError):
    """A bool, int or float where the primitive needs another."""

    code = "dtype"
    float_operands: frozenset[str] = frozenset()
    """Operands taken as floats that the failing arguments depend on: tracing tries them as integers."""


class TracedControlFlow(AuthoringError, TypeError):
    """Python asked a traced value for its truth: the value is not known while tracing."""

    code = "control-flow"


class BadArgument(AuthoringError):
    """An attribute of a primitive outside its range."""

    code = "argument"


class BadSignature(AuthoringError):
    """A parameter or an annotation that the decorator does not accept."""

    code = "signature"


class BadOutputs(AuthoringError):
    """The returned value cannot be stored."""

    code = "outputs"


class ProgramTooLarge(AuthoringError):
    """More nodes than a program may have."""

    code = "size"


class PlanError(AuthoringError):
    """Something that a plan may not do."""

    code = "plan"


class FormatError(CodaError):
    """JSON that is not a program, or is of an unknown version."""

    code = "format"


class CallError(CodaError):
    """Tensors cannot be bound to a program."""

    code = "call"


class UnknownOperand(CallError, TypeError):
    """A name that the program does not have."""

    code = "unknown-operand"


class UnknownResult(CallError, KeyError):
    """A name that none of a call's results has."""

    code = "unknown-result"


class MissingOperand(CallError, TypeError):
    """A name that the program has and the call lacks."""

    code = "missing-operand"


class ShapeMismatch(CallError):
    """A tensor of the wrong shape."""

    code = "shape"


class DTypeUnsupported(CallError):
    """A tensor of a dtype that the operand does not take."""

    code = "tensor-dtype"


class DeviceMismatch(CallError):
    """Tensors on different devices."""

    code = "device"


class OverlappingOutput(CallError):
    """An `out=` tensor shares memory with an input or with another output."""

    code = "overlap"


class UnknownProgram(CallError):
    """A compiled graph names a program that this process has not seen."""

    code = "unknown-program"


class NotDifferentiable(CallError):
    """A call while a gradient is wanted: kernels have none of their own."""

    code = "not-differentiable"


class BackendError(CodaError):
    """A backend cannot do its work."""

    code = "backend"


class UnknownBackend(BackendError):
    """No backend of that name."""

    code = "unknown-backend"


class BackendUnavailable(BackendError):
    """A package or a device that the backend needs is missing."""

    code = "backend-unavailable"


class Unsupported(BackendError):
    """This backend cannot run this program on this problem."""

    code = "unsupported"


class BadSchedule(BackendError):
    """A schedule that no kernel of the backend can have."""

    code = "schedule"


class CompileError(BackendError):
    """The toolchain refused the generated code."""

    code = "compile"


class LayoutError(CodaError):
    """A weight layout that does not fit the tensor."""

    code = "layout"


class SettingError(CodaError):
    """A CODA_* variable with a bad value."""

    code = "setting"


def near(name: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """A hint "did you mean …?" with up to three near names, or None. `cutoff`: how alike, from 0 to 1."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=cutoff)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else None


def shown(x: object) -> str:
    """What somebody gave, for `got`: its type, and what it prints, on one line of some sixty characters."""
    return f"{type(x).__name__} {textwrap.shorten(reprlib.repr(x), 60, placeholder=' …')}"
