"""A traced program and a task side by side: what every later gate works with.

    Subject    one program, whatever its kind: its interface, fp64 reference, GEMM count, and how its inputs are named
    TaskRef    a task by name and folder, for payloads of workers
    interface  does the program take and return what the task says?

`interface` compares by sizes: both sides are evaluated at several dims whose lengths are all different, so two shapes that
agree everywhere are the same symbolic shape.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from coda.errors import CodaError
from coda.evaluate import evaluate
from coda.kernel import from_json
from coda.plan import Plan, execute
from coda.primitives.types import Kind
from coda.program import EpilogueProgram

from ..records import Status
from ..task import Dims, Input, Task, lengths, load
from . import inputs as draws
from .sizes import distinct_dims

Program = EpilogueProgram | Plan


@dataclass(frozen=True)
class Mismatch:
    """Where a program's interface differs from the task's, and what to change."""

    status: Status
    name: str
    message: str


@dataclass(frozen=True)
class Subject:
    """A program that is judged."""

    program: Program
    task: Task

    @classmethod
    def read(cls, text: str, task: Task) -> Subject:
        """From program JSON. Raises `coda.errors.FormatError`."""
        return cls(from_json(text).program, task)

    @property
    def kind(self) -> str:
        """epilogue, pointwise or plan."""
        return self.program.kind

    @property
    def gemms(self) -> int:
        """How many GEMMs it runs."""
        if isinstance(self.program, Plan):
            return self.program.gemms
        return 1 if self.program.kind == "epilogue" else 0

    @property
    def parts(self) -> tuple[EpilogueProgram, ...]:
        """The programs that run on the device."""
        return self.program.programs if isinstance(self.program, Plan) else (self.program,)

    @property
    def output_names(self) -> tuple[str, ...]:
        """In the program's order."""
        return tuple(o.name for o in self.program.outputs)

    def bind(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The task's inputs under the program's names: the GEMM's two are `a` and `b` of an epilogue."""
        if self.kind != "epilogue":
            return dict(inputs)
        role = {i.name: i.role for i in self.task.inputs}
        return {role[name] if role[name] in ("a", "b") else name: x for name, x in inputs.items()}

    def reference(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Every output in fp64, unrounded. Raises `CodaError` where the inputs do not fit."""
        found: dict[str, torch.Tensor] = self.program.reference(**self.bind(draws.upcast(inputs)))
        return found

    def stored(self, inputs: Mapping[str, Any], dtype: str) -> dict[str, torch.Tensor]:
        """Every output as a kernel stores it: computed in fp32, rounded at each store."""
        compute = torch.float64 if dtype == "float64" else torch.float32

        def run(program: EpilogueProgram, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
            m, n, own = sizes_of(program, tensors)
            return evaluate(program, tensors, m=m, n=n, dtype=compute, stored_as=own)

        bound = self.bind(inputs)
        if isinstance(self.program, Plan):
            return execute(self.program, self.program.bind((), bound), run, compute)
        return run(self.program, bound)


def sizes_of(program: EpilogueProgram, tensors: Mapping[str, Any]) -> tuple[int, int, str]:
    """M, N and the dtype name that decides stores, from tensors at launch."""
    if program.kind == "epilogue":
        return tensors["a"].shape[0], tensors["b"].shape[1], str(tensors["a"].dtype).removeprefix("torch.")
    first = program.first_tile
    assert first is not None
    x = tensors[first.name]
    return x.shape[0], int(x.shape[1] / first.width), str(x.dtype).removeprefix("torch.")


# tasks across a process border ----------------------------------------------------------------------------------------


def task_ref(task: Task) -> dict[str, str]:
    """A task in a payload: its id and the folder of its file."""
    return {"id": task.id, "folder": str(task.source_path.parent)}


def load_task(ref: Mapping[str, str]) -> Task:
    """The inverse of `task_ref`, in a worker."""
    return load(ref["id"], pathlib.Path(ref["folder"]))


# the interface --------------------------------------------------------------------------------------------------------


def interface(subject: Subject) -> list[Mismatch]:
    """Everything that must change before the program can be called as the task says. Empty when it can."""
    found = _gemms(subject)
    found += _operands(subject)
    if not found:
        found += _outputs(subject)
    return found


def _gemms(subject: Subject) -> list[Mismatch]:
    task = subject.task
    if subject.gemms > task.gemms:
        message = (
            f"the kernel runs {subject.gemms} GEMMs; {task.id} allows {task.gemms}: express the rest as an epilogue"
        )
        return [Mismatch(Status.POLICY, "", message)]
    has_gemm = {i.role for i in task.inputs} >= {"a", "b"}
    if subject.kind == "pointwise" and has_gemm:
        return [
            Mismatch(Status.WRONG_SHAPE, "", f"{task.id} has a GEMM: write `@coda.epilogue`, whose `acc` is its result")
        ]
    if subject.kind == "epilogue" and not has_gemm:
        a_b = "a plan" if task.gemms else "a pointwise program"
        return [Mismatch(Status.WRONG_SHAPE, "", f"{task.id} passes its inputs by name to {a_b}: decorate accordingly")]
    return []


def _wanted(subject: Subject) -> dict[str, Input]:
    gemm = ("a", "b") if subject.kind == "epilogue" else ()
    return {i.name: i for i in subject.task.inputs if i.role not in gemm}


def _operands(subject: Subject) -> list[Mismatch]:
    wanted, program = _wanted(subject), subject.program
    has: dict[str, float | int | None]
    if isinstance(program, Plan):
        has = {name: default for name, _, default in program.inputs}
    else:
        has = {o.name: o.default for o in program.operands}
    found: list[Mismatch] = []
    for name in wanted.keys() - has.keys():
        found.append(
            Mismatch(
                Status.WRONG_SHAPE,
                name,
                f"the kernel has no operand {name!r}: add a parameter {spelling(subject.task, wanted[name])}",
            )
        )
    for name in has.keys() - wanted.keys():
        names = ", ".join(wanted) or "none"
        found.append(
            Mismatch(
                Status.WRONG_SHAPE,
                name,
                f"the task has no operand {name!r}: remove the parameter; operands are {names}",
            )
        )
    for name in wanted.keys() & has.keys():
        if (wanted[name].default is None) != (has[name] is None) or wanted[name].default != has[name]:
            declared = spelling(subject.task, wanted[name])
            found.append(
                Mismatch(
                    Status.WRONG_SHAPE, name, f"operand {name!r} has the default {has[name]!r}: declare {declared}"
                )
            )
    if isinstance(program, EpilogueProgram) and not found:
        found += _operand_shapes(subject, program, wanted)
    return sorted(found, key=lambda m: m.name)


def _operand_shapes(subject: Subject, program: EpilogueProgram, wanted: Mapping[str, Input]) -> list[Mismatch]:
    found: list[Mismatch] = []
    for dims in distinct_dims(subject.task):
        m, n = gemm_sizes(subject, program, dims)
        for operand in program.operands:
            i = wanted[operand.name]
            if n is None or any(x.name == operand.name for x in found):
                continue
            if operand.shape(m, n) != lengths(i.shape, dims):
                message = f"operand {operand.name!r} is declared as another kind or width: declare {spelling(subject.task, i)}"
                found.append(Mismatch(Status.WRONG_SHAPE, operand.name, message))
            elif (i.dtype == "int64") != (operand.dtype == "int") and operand.kind is not Kind.TILE:
                message = f"operand {operand.name!r} holds {i.dtype} values, the kernel uses it as {operand.dtype}"
                found.append(Mismatch(Status.WRONG_DTYPE, operand.name, message))
    return found


def gemm_sizes(subject: Subject, program: EpilogueProgram, dims: Dims) -> tuple[int, int | None]:
    """M and N of a program at a task's sizes; N is None where the first tile's width does not divide its columns."""
    task = subject.task
    by_role = {i.role: i for i in task.inputs}
    if program.kind == "epilogue":
        return lengths(by_role["a"].shape, dims)[0], lengths(by_role["b"].shape, dims)[1]
    first = program.first_tile
    assert first is not None
    shape = lengths(next(i for i in task.inputs if i.name == first.name).shape, dims)
    if len(shape) != 2:
        return 0, 0
    n = shape[1] / first.width
    return shape[0], int(n) if n.denominator == 1 else None


def spelling(task: Task, i: Input) -> str:
    """How an operand is declared, as far as its shape says beside the GEMM's own, or the first matrix of a pointwise task."""
    if i.default is not None:
        return f"`{i.name}: float = {i.default!r}`"
    shape = f"of shape ({', '.join(i.shape)}{',' if len(i.shape) == 1 else ''})"
    if task.kind == "plan":
        return f"`{i.name}`, {shape}"
    return f"`{i.name}: {_annotation(task, i)}`, {shape}"


def _annotation(task: Task, i: Input) -> str:
    by_role = {x.role: x for x in task.inputs}
    matrix = next((x.shape for x in task.inputs if len(x.shape) == 2), ("M", "N"))
    columns = (by_role["b"].shape if "b" in by_role else matrix)[1]
    match i.shape:
        case ():
            return "Scalar"
        case (_, wide) if wide.replace(" ", "") in ("2*N", "N*2"):
            return "Tile(width=2)"
        case (_, _):
            return "Tile"
        case (length,) if length == columns:
            return "RowVector"
        case (length,) if length == f"{columns}//2":
            return "RowVector(width=0.5)"
        case (length,) if length.isdecimal():  # as long whatever N is: it repeats
            return f"RowVector(period={length})"
        case ("M",):
            return "ColVector"
        case _:
            return "ColVector or RowVector"


def _outputs(subject: Subject) -> list[Mismatch]:
    task, have = subject.task, subject.output_names
    want = {o.name: o for o in task.outputs}
    found = [
        Mismatch(Status.WRONG_SHAPE, name, f"output {name!r} is missing: return it")
        for name in want
        if name not in have
    ]
    for name in have:
        if name not in want:
            message = f"the task has no output {name!r}: do not return it; outputs are {', '.join(want)}"
            found.append(Mismatch(Status.WRONG_SHAPE, name, message))
    if found:
        return found
    for dtype in ("bfloat16", "float16"):
        for dims in distinct_dims(task):
            found += [m for m in _stored_outputs(subject, dims, dtype) if m.name not in {f.name for f in found}]
    return found


def _stored_outputs(subject: Subject, dims: Dims, dtype: str) -> list[Mismatch]:
    """Shapes and dtypes of outputs by computing them once at small sizes."""
    try:
        values = subject.stored(draws.draw(subject.task, dims, seed=1, dtype=dtype), dtype)
    except (CodaError, RuntimeError) as error:
        what = getattr(error, "what", None) or str(error)
        return [Mismatch(Status.WRONG_SHAPE, "", f"the kernel does not take the task's inputs: {what}")]
    found = []
    for o in subject.task.outputs:
        shape, got = lengths(o.shape, dims), values[o.name]
        stored, want = str(got.dtype).removeprefix("torch."), draws.output_dtype(o.dtype, dtype)
        if tuple(got.shape) != shape:
            symbols = f"({', '.join(o.shape)}{',' if len(o.shape) == 1 else ''})"
            message = f"output {o.name!r} has {got.ndim} dimensions of the wrong size: its shape is {symbols}"
            found.append(Mismatch(Status.WRONG_SHAPE, o.name, message))
        elif stored != want:
            fix = (
                "return the tile without a dtype"
                if o.dtype == "data"
                else f'store it with store({o.name}, dtype="{o.dtype}")'
            )
            rule = "the dtype of the inputs" if o.dtype == "data" else o.dtype
            message = f"output {o.name!r} is stored as {stored} where {rule} is wanted: {fix}"
            found.append(Mismatch(Status.WRONG_DTYPE, o.name, message))
    return found
