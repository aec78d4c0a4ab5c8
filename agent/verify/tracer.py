"""Gate `trace`: run a candidate's Python once, in a throw-away process, and keep only the program that it wrote.

    tracer.py ──Child (process.py)──▶ watchdog (supervise.py) ──▶ trace_child.py: confine.py, then the candidate
              ◀── one JSON document with our nonce, on a private pipe ──

`trace` never raises for anything a candidate does; it returns a `TraceOutcome` with a status word of the judge:

| word            | when                                                                                             |
|-----------------|--------------------------------------------------------------------------------------------------|
| `PASS`          | exactly one document, our nonce, and its program is accepted by `coda`'s own strict parser here    |
| `COMPILE_ERROR` | a syntax error, or a mistake that `coda` names while tracing (`error.code` says which)            |
| `RUNTIME_ERROR` | any other exception of the candidate                                                             |
| `POLICY`        | an import that is not allowed got past the static gate                                            |
| `TIMEOUT`       | wall or CPU limit                                                                                |
| `CRASH`         | ended by a signal, a non-zero exit, memory, or too much output                                    |
| `TAMPERED`      | exit 0 without an answer, wrong nonce, more than one document, or a document that `coda` refuses  |
| `INFRA_ERROR`   | the tracing process itself could not start: not the candidate's fault, and never a pass           |

The candidate shares a process with the code that answers, so a determined one can forge the document. That gains
nothing: a forged program is a program, parsed here as data and judged like any other; the source is retraced on review.
"""

from __future__ import annotations

import functools
import json
import pathlib
import secrets
import sys
from typing import Literal

from pydantic import Field, ValidationError

from . import wire
from .plain import plain
from .process import Child, Ending, Frozen, Limits, bad_end, scrubbed_environment

TraceStatus = Literal["PASS", "COMPILE_ERROR", "RUNTIME_ERROR", "POLICY", "TIMEOUT", "CRASH", "TAMPERED", "INFRA_ERROR"]

FILENAME = "kernel.py"
"""The name under which a candidate's lines are reported."""

_CHILD = pathlib.Path(__file__).with_name("trace_child.py")


class TraceLimits(Frozen):
    """What the tracing process may use. An honest trace takes well under half a second and 100 MB."""

    wall_s: float = Field(default=10.0, gt=0)
    cpu_s: int = Field(default=8, ge=1)
    memory_mb: int = Field(default=1024, ge=64)
    """Address space."""
    output_mb: float = Field(default=8.0, gt=0)
    """Printing more than this is a crash; less is kept as head and tail and ignored. An honest kernel cannot print at all."""
    answer_bytes: int = Field(default=1 << 20, gt=0)
    syscall_filter: bool = True
    """Off only to test that the other layers hold by themselves."""


class TraceError(Frozen):
    """Why there is no program: a stable code, a sentence, what to do, and the candidate's line."""

    code: str
    message: str
    hint: str | None = None
    line: int | None = None


class TraceEvidence(Frozen):
    """What the process did."""

    ending: Ending
    layers: tuple[str, ...] = ()
    """Confinement layers that held (see `confine.py`), as the process reported before the candidate ran."""


class TraceOutcome(Frozen):
    """The gate's result. `program_json` is set exactly when the status is PASS."""

    status: TraceStatus
    program_json: str | None = None
    """Written by `coda` in this process from the parsed program, never the child's bytes."""
    digest: str | None = None
    error: TraceError | None = None
    evidence: TraceEvidence

    @property
    def ok(self) -> bool:
        """Whether there is a program."""
        return self.status == "PASS"


class _Answer(Frozen):
    """The child's document; anything else is tampering."""

    nonce: str
    ok: bool
    layers: tuple[str, ...] = ()
    program: str | None = None
    status: Literal["COMPILE_ERROR", "RUNTIME_ERROR", "POLICY", "CRASH", "INFRA_ERROR"] | None = None
    error: TraceError | None = None


def trace(
    source: str,
    *,
    operand_dtypes: dict[str, str] | None = None,
    limits: TraceLimits | None = None,
    filename: str = FILENAME,
) -> TraceOutcome:
    """Run `source` and return the program of its `kernel`.

    `operand_dtypes` gives the dtypes of the task's tensors by operand name, where they matter (an integer vector).
    """
    limits = limits or TraceLimits()
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "source": source,
        "filename": filename,
        "operand_dtypes": operand_dtypes,
        "confine": {"cpu_s": limits.cpu_s, "memory_mb": limits.memory_mb, "syscall_filter": limits.syscall_filter},
    }
    child = Child(
        lambda descriptor: [sys.executable, "-s", "-P", "-S", "-B", str(_CHILD), str(descriptor), str(_coda_folder())],
        env=scrubbed_environment(),
        limits=_process_limits(limits),
    )
    with child:
        child.send(wire.dump(request), close=True)
        child.pump(until=lambda: False)
        ending = child.end()
    return _outcome(bytes(child.answer), ending, nonce, limits)


def _process_limits(limits: TraceLimits) -> Limits:
    return Limits(
        wall_s=limits.wall_s,
        memory_mb=limits.memory_mb,
        output_mb=limits.output_mb,
        answer_bytes=limits.answer_bytes,
    )


@functools.cache
def _coda_folder() -> pathlib.Path:
    import coda

    return pathlib.Path(coda.__file__).resolve().parent


def _outcome(data: bytes, ending: Ending, nonce: str, limits: TraceLimits) -> TraceOutcome:
    """The verdict from how the process ended and what it answered; a bad end outweighs any answer."""
    bad = bad_end(ending, _process_limits(limits), cpu_s=limits.cpu_s)
    if bad is not None:
        return _failed(_BY_A_CANDIDATE.get(bad.code, bad.status), bad.code, f"while tracing: {bad.message}", ending)
    if not data:
        return _failed("TAMPERED", "no-answer", "the process ended with exit code 0 and no answer", ending)
    try:
        answer = _Answer.model_validate(wire.parse(data, max_bytes=limits.answer_bytes))
    except (wire.BadDocument, ValidationError) as error:
        return _failed("TAMPERED", "bad-document", f"the answer is not one valid document: {str(error)[:300]}", ending)
    if not secrets.compare_digest(answer.nonce.encode(), nonce.encode()):
        return _failed("TAMPERED", "bad-nonce", "the answer does not carry this run's nonce", ending)
    evidence = TraceEvidence(ending=ending, layers=answer.layers)
    if answer.ok:
        return _accepted(answer.program, evidence)
    if answer.status is None or answer.error is None:
        return _failed("TAMPERED", "bad-document", "the answer is neither a program nor an error", ending)
    return TraceOutcome(status=answer.status, error=_shown(answer.status, answer.error), evidence=evidence)


def _shown(status: str, error: TraceError) -> TraceError:
    """A candidate's words, harmless. The lines of a message are `coda`'s own where `coda` has named the mistake."""
    ours = status == "COMPILE_ERROR"
    hint = error.hint and plain(error.hint, lines=True)
    message = plain(error.message, lines=ours)
    return error.model_copy(update={"code": plain(error.code, most=80), "message": message, "hint": hint})


_HINTS: dict[str, str] = {
    "wall-limit": "a kernel file is traced once, in well under a second: loops over constants must be short (at most a few "
    "hundred steps), and what depends on the sizes is written with primitives, not with loops",
    "memory-limit": "do not build large Python objects: a kernel file holds a few numbers and traced values, no tables",
    "output-limit": "print nothing: nobody reads the output of a kernel file",
    "answer-limit": "the program is far too large: write loops with few steps",
}
_HINTS["cpu-limit"] = _HINTS["wall-limit"]
"""What to change in a file that has hit a limit."""


_BY_A_CANDIDATE: dict[str, TraceStatus] = {"answer-limit": "TAMPERED", "watchdog-lost": "TAMPERED"}
"""What only a candidate can have done in this process, where nothing else of that size is said and nothing else kills."""


def _accepted(text: str | None, evidence: TraceEvidence) -> TraceOutcome:
    """Parse the program with `coda`'s strict parser; what is kept is what `coda` writes back."""
    from coda.errors import CodaError
    from coda.kernel import from_json

    text = text or ""
    try:
        document = wire.parse(text.encode("utf-8", "surrogatepass"), max_bytes=1 << 20)  # its depth, before recursion
        program = from_json(json.dumps(document)).program  # not the text itself: the document can be encoded
        return TraceOutcome(status="PASS", program_json=program.to_json(), digest=program.digest, evidence=evidence)
    except Exception as error:  # a parser that trips over forged data must not take the judge with it
        code = error.code if isinstance(error, CodaError) else type(error).__name__
        message = plain(f"the traced program is not valid: {str(error)[:300]}")
        return TraceOutcome(status="TAMPERED", error=TraceError(code=code, message=message), evidence=evidence)


def _failed(status: TraceStatus, code: str, message: str, ending: Ending) -> TraceOutcome:
    error = TraceError(code=code, message=plain(message), hint=_HINTS.get(code))
    return TraceOutcome(status=status, error=error, evidence=TraceEvidence(ending=ending))
