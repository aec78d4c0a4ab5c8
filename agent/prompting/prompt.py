"""Prompts: a pure function of (task, examples, feedback). No clock, no ids, no environment.

    system_text     guide and examples: the stable prefix, byte-identical in all rounds of a run
    task_text       what to compute, and the interface to keep
    improve_text    after it: a kept kernel to be made faster, with what was measured of it
    turns           earlier replies and the feedback on them
    request         all of it as one `Request`

Everything that a candidate or its tools said is quoted (`quoting`). The templates are in `templates/`, with a `VERSION` that is recorded in every run; a changed
template wants a new one. Neighbours: `bank` chooses the examples, `feedback` says what may be told, `vocabulary` writes
down the primitives.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, assert_never

import jinja2

from coda.primitives.types import WIDTHS
from coda.problem import CHOICES
from coda.program import REFUSED_NAMES

from ..llm.protocol import Message, ProblemKind, Reply, Request, clean_text
from ..records import Status
from ..settings import Effort
from ..task import Input, Result, Task, lengths
from ..verify.vocabulary import BUILTINS
from .bank import Example
from .feedback import Feedback, Passed, Refused, UnusableReply
from .frame import frame
from .quoting import fenced, quote
from .vocabulary import primitive_classes, schedule_fields

FOLDER = pathlib.Path(__file__).parent / "templates"
MAX_SOURCE = 24_000
"""Characters of an earlier candidate. Longer than any kernel that a person would review."""
MAX_PROSE = 2_000


@dataclass(frozen=True)
class Exchange:
    """One reply and what was said about it."""

    reply: Reply
    feedback: Feedback


def version() -> str:
    """Of the templates: the number in `templates/VERSION`."""
    return _file("VERSION").strip()


def system_text(examples: Sequence[Example]) -> str:
    """The stable prefix: depends on the examples shown and on nothing else."""
    return _render(
        "guide.md.j2",
        builtins=", ".join(BUILTINS),
        refused_names=", ".join(f"`{n}`" for n in REFUSED_NAMES),
        skeleton_epilogue=_file("skeleton_epilogue.py.txt"),
        skeleton_plan=_file("skeleton_plan.py.txt"),
        classes=primitive_classes(),
        mistakes=mistakes(),
        schedule=schedule_fields(),
        choices=CHOICES,
        examples=[{"id": e.id, "source": e.source if e.source.endswith("\n") else e.source + "\n"} for e in examples],
    )


def task_text(task: Task) -> str:
    """What to write: the same in all rounds of a run."""
    gradient = task.gradient
    return _render(
        "task.md.j2",
        title=task.title,
        description=task.description.strip() or "See the tables.",
        inputs=[_input_row(task, i) for i in task.inputs],
        outputs=[{"name": o.name, "shape": _shape(o.shape), "dtype": _stored(task, o)} for o in task.outputs],
        kind=_kind_line(task),
        gemms=task.gemms,
        interface=_interface_line(task),
        linear=" and ".join(f"`{name}`" for name in gradient.linear) if gradient else "",
        upstream=gradient.upstream if gradient else "",
    )


def improve_text(source: str, feedback: Passed) -> str:
    """Where a run does not start from nothing: the same in all its rounds."""
    return _render("improve.md.j2", source=_cut(source, MAX_SOURCE).rstrip("\n"), f=feedback)


def turns(exchanges: Sequence[Exchange]) -> tuple[Message, ...]:
    """Two messages per exchange: what was sent, as text, and the feedback."""
    found: list[Message] = []
    for exchange in exchanges:
        found.append(Message(role="assistant", text=_reply_text(exchange.reply)))
        found.append(Message(role="user", text=feedback_text(exchange.feedback, _source(exchange.reply))))
    return tuple(found)


def request(
    system: str,
    task: str,
    exchanges: Sequence[Exchange],
    *,
    call: int,
    model: str,
    max_tokens: int,
    effort: Effort | None = None,
    plainly: bool = False,
) -> Request:
    """The request of model call `call`. `plainly` leaves the history out and asks in plain words, after a refusal."""
    messages = (Message(role="user", text=_render("plain.md.j2")),) if plainly else turns(exchanges)
    return Request(
        system=system, task=task, turns=messages, round=call, model=model, max_tokens=max_tokens, effort=effort
    )


def feedback_text(feedback: Feedback, source: str = "") -> str:
    """One user turn."""
    line = feedback.line if isinstance(feedback, Refused) else None
    lines = source.split("\n")
    source_line = lines[line - 1][:400] if line is not None and 0 < line <= len(lines) else ""
    return _render("feedback.md.j2", f=feedback, advice=_advice(feedback), source_line=source_line)


def sha256(text: str) -> str:
    """Of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def mistakes() -> tuple[dict[str, str], ...]:
    """Common mistakes with coda's own words for them; a test makes each one and compares."""
    return tuple(tomllib.loads(_file("mistakes.toml"))["mistake"])


# the task's interface -------------------------------------------------------------------------------------------------


def _input_row(task: Task, i: Input) -> dict[str, str]:
    dtype = {"data": "data", "float32": "float32", "int64": "int64"}[i.dtype]
    return {"name": i.name, "shape": _shape(i.shape) if i.shape else "number", "dtype": dtype, "use": _use(task, i)}


def _use(task: Task, i: Input) -> str:
    """How a kernel names and annotates it."""
    if i.role in ("a", "b"):
        return f"the GEMM's `{i.role}`; not a parameter"
    if i.default is not None:
        return f"keyword `{i.name}: float = {i.default!r}`"
    if i.role == "input" and task.kind == "plan":
        return f"parameter `{i.name}`"
    annotation = annotate(task, i)
    if annotation and "period" in annotation:
        return f"parameter `{i.name}: {annotation}`, repeated along the columns (with `width=0.5` to go with halves)"
    return f"parameter `{i.name}: {annotation}`" if annotation else f"parameter `{i.name}`"


def annotate(task: Task, i: Input) -> str | None:
    """The annotation that follows from the shape, relative to the GEMM's (M, N) or a pointwise task's first matrix."""
    found = frame(task)
    if found is None or not i.shape:
        return None if i.shape else "Scalar"
    if len(i.shape) == 1 and i.shape[0].isdecimal():  # as long whatever N is: it repeats
        return f"RowVector(period={i.shape[0]})"
    m, n, dims = found
    size = lengths(i.shape, dims)
    if len(size) == 1:
        if size[0] == m:
            return "ColVector"
        return _sized("RowVector", Fraction(size[0], n))
    return _sized("Tile", Fraction(size[1], n)) if size[0] == m else None


def _sized(name: str, width: Fraction) -> str | None:
    spelled = {Fraction(1): name, Fraction(2): f"{name}(width=2)", Fraction(1, 2): f"{name}(width=0.5)"}
    return spelled.get(width)


def _shape(shape: tuple[str, ...]) -> str:
    inside = ", ".join(text.replace("*", "·") for text in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def _stored(task: Task, o: Result) -> str:
    """How an output is stored, and what to write where that is not the default."""
    kind = "vector" if len(o.shape) == 1 else "tile" if _is_tile(task, o) else "segment value"
    if o.dtype == "data":
        return "the dtype under test" + (", the default of a tile" if kind == "tile" else "")
    if kind != "tile" and o.dtype == "float32":
        return f"float32, the default of a {kind}"
    return f'{o.dtype}: write `store(v, dtype="{o.dtype}")`'


def _is_tile(task: Task, o: Result) -> bool:
    """Whether its columns are 1/2, 1 or 2 times N; fewer are one number for each group of columns."""
    found = frame(task)
    if found is None:
        return True
    _, n, dims = found
    return Fraction(lengths(o.shape, dims)[-1], n) in WIDTHS


def _kind_line(task: Task) -> str:
    usual = {
        "epilogue": "Usually one `@coda.epilogue`.",
        "pointwise": "Usually one `@coda.pointwise` program.",
        "plan": "Usually a `@coda.plan`, with its programs in the same file.",
    }[task.kind]
    return f"{usual} Any kind with this interface is accepted."


def _interface_line(task: Task) -> str:
    names = [i.name for i in task.inputs if i.role not in ("a", "b")]
    listed = ", ".join(f"`{n}`" for n in names) or "none"
    if task.kind == "epilogue":
        every = ", ".join(f"`{i.name}`" for i in task.inputs)
        return (
            f"Parameters of an epilogue: `acc` and {listed}. (A plan instead takes every input by name: {every}.)"
            if names
            else f"Parameters of an epilogue: `acc` alone. (A plan instead takes every input by name: {every}.)"
        )
    return f"Parameters, by name: {listed}."


# wording --------------------------------------------------------------------------------------------------------------


def _advice(feedback: Feedback) -> str:
    match feedback:
        case UnusableReply():
            return _reply_advice(feedback.problem)
        case Refused():
            return _status_advice(feedback.status)
        case _:
            return ""


def _reply_advice(problem: ProblemKind) -> str:
    """What to do differently; the problem's own message comes first and says what was wrong."""
    match problem:
        case "empty_reply" | "no_code":
            return "Send the complete kernel file now: one fenced Python block, or the `submit_kernel` tool."
        case "no_kernel":
            return "Send the whole file, not a part of it, with exactly one object named `kernel`."
        case "syntax_error":
            return "Correct the syntax and send the whole file again."
        case "invalid_text" | "bad_tool_input":
            return "Send the whole file again as plain UTF-8 text."
        case "too_large" | "truncated":
            return "A kernel is a few dozen lines. Send the file first and leave the explanation out."
        case "refused":
            return ""
        case _:
            assert_never(problem)


def _status_advice(status: Status) -> str:  # noqa: C901  one case per word
    """What the status word means for the author."""
    match status:
        case Status.COMPILE_ERROR:
            return "The file, its program or the code generated from it is not accepted:"
        case Status.POLICY:
            return "The file uses something that a kernel file may not use:"
        case Status.RUNTIME_ERROR:
            return "An exception was raised:"
        case Status.TIMEOUT:
            return "It did not end within the time limit. Nothing in a kernel should take long: look for unbounded or nested loops."
        case Status.CRASH:
            return "The process ended abnormally, out of memory or with too much output:"
        case Status.WRONG_SHAPE:
            return "Names or shapes differ from the task's tables:"
        case Status.WRONG_DTYPE:
            return "A dtype differs from the task's tables:"
        case Status.WRONG_DEVICE_OR_STRIDE:
            return "An output is not a plain contiguous tensor on the inputs' device:"
        case Status.WRONG_VALUES:
            return "It runs and the values are wrong:"
        case Status.NONFINITE:
            return "NaN or infinity appears where the reference has none, or the other way round: look for overflow, 0/0, or a log of 0."
        case Status.NONDETERMINISTIC:
            return "Two runs differ in their bits."
        case Status.INPUT_MUTATED:
            return "An input was changed."
        case Status.TAMPERED:
            return "The answer of the tracing process, or memory outside the outputs, was not as it must be. Write a plain kernel file:"
        case Status.SUSPECT | Status.INVALID_SPEC | Status.INFRA_ERROR | Status.NOT_RUN:
            return "This is not yours to mend:"
        case Status.PASS | Status.NO_DIFFERENCE | Status.SLOWER:
            return ""
        case _:
            assert_never(status)


def _source(reply: Reply) -> str:
    return reply.submission.source if reply.submission else ""


def _reply_text(reply: Reply) -> str:
    """The assistant's turn. A tool call is written as text: providers differ in how they keep one."""
    if reply.submission is None:
        return _cut(reply.text, MAX_PROSE) or "(no text)"
    source = _cut(reply.submission.source, MAX_SOURCE).rstrip("\n")
    prose = _cut(reply.submission.rationale, MAX_PROSE).strip()
    return f"{prose}\n\n{fenced(source, 'python')}".lstrip("\n")


def _cut(text: str, limit: int) -> str:
    text = clean_text(text)
    return text if len(text) <= limit else f"{text[: limit // 2]}\n… cut …\n{text[-(limit // 2) :]}"


# templates ------------------------------------------------------------------------------------------------------------


@functools.cache
def _file(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701  Markdown for a model, not HTML
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"quote": quote, "fenced": fenced, "spelled": _spelled, "cell": _cell}
    return found


def _spelled(times: Sequence[tuple[str, float]]) -> str:
    """Names with their microseconds in one cell."""
    return ", ".join(f"{_cell(name)} {us:.1f}" for name, us in times) or "-"


def _cell(text: str) -> str:
    """Somebody's name for something, in one cell of a table."""
    return " ".join(clean_text(text).replace("|", "¦").replace("`", "'").split())[:200]


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values).strip("\n") + "\n"
