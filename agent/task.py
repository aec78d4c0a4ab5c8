"""`Task`: what a kernel must compute, said without saying how.

    Input, Result, Shape   the pieces: what goes in, what comes out, at which sizes
    Gradient               for backward tasks: the forward function and what the outputs are linear in
    Task                   all of it, with the obvious PyTorch (`reference`) and what a user writes today (`baseline`)
    cards, load, find      the bank in `agent/tasks/`: one file per task, found by its name

A card (id, title, aliases, family, difficulty) is read from the file's syntax tree, so listing or looking up tasks does not
import torch. A new task is one new file; nothing else has to be edited.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from .errors import InvalidTask, UnknownTask

if TYPE_CHECKING:
    import torch

FOLDER = pathlib.Path(__file__).parent / "tasks"

Dims = Mapping[str, int]
Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Input:
    """One tensor or number that goes in."""

    name: str
    shape: tuple[str, ...]
    """Each length as arithmetic over the dims: ("M", "2*N"). () is a scalar."""
    draw: str = "normal"
    """How values are drawn, a name in `agent/verify/inputs.py`: normal, weight (scaled by 1/√K), positive, rstd, gain, index, angles…"""
    dtype: Literal["data", "float32", "int64"] = "data"
    """`data` is the dtype under test; vectors of statistics are fp32."""
    role: Literal["a", "b", "operand", "input"] = "operand"
    """`a` and `b` are the GEMM's; a plan's inputs are all `input`."""
    default: float | None = None
    """Of a scalar: then it is a keyword with this default, not a tensor."""


@dataclass(frozen=True)
class Result:
    """One tensor that comes out."""

    name: str
    shape: tuple[str, ...]
    dtype: Literal["data", "float32", "float8_e4m3fn"] = "data"
    """`data` is the dtype under test. fp8 values are compared before rounding like all others: a task that clips says so."""


@dataclass(frozen=True)
class Shape:
    """Sizes with a reason."""

    family: Literal["smoke", "ragged", "benchmark"]
    dims: Dims
    reason: str


@dataclass(frozen=True)
class Gradient:
    """What makes a task a gradient, for checks that need no reference."""

    forward: Callable[..., Any]
    """The forward function of the same inputs by name, in PyTorch; returns the tensor whose gradient goes in."""
    upstream: str
    """The input that is the gradient of `forward`'s result."""
    wrt: Mapping[str, str]
    """Output name -> the input it is the gradient of."""
    linear: tuple[str, ...]
    """Outputs that are linear in `upstream`."""
    consistent: Callable[[Tensors], Tensors] = field(default=lambda inputs: inputs)
    """Recomputes inputs that are statistics of others (rstd, a row's dot product), so that finite differences hold."""


@dataclass(frozen=True)
class Task:
    """A task of the bank. `reference` and `baseline` take every input by name and return the outputs by name."""

    id: str
    title: str
    aliases: tuple[str, ...]
    family: str
    difficulty: Literal[1, 2, 3]
    inputs: tuple[Input, ...]
    outputs: tuple[Result, ...]
    reference: Callable[..., Tensors]
    """Obvious, unfused PyTorch; up-casts to the widest dtype given; right in fp64; never rounds in between."""
    baseline: Callable[..., Tensors]
    """What a PyTorch user writes today in the working dtype, for torch.compile; writes the same outputs."""
    shapes: tuple[Shape, ...]
    description: str = ""
    """The mathematics, for the prompt: formulas over the names of inputs and outputs, and conventions."""
    kind: Literal["epilogue", "pointwise", "plan"] = "epilogue"
    """What a kernel for it usually is. Any kind with the same interface and no more GEMMs is accepted."""
    gemms: int = 1
    gradient: Gradient | None = None
    peers: tuple[str, ...] = ()
    """Names in `coda/bench/peers.py` that apply besides eager, compile and the plain GEMM."""
    needs: tuple[str, ...] = ()
    """Primitives and idioms (`examples_curated/idioms.py`) of an obvious solution, for choosing what a prompt shows; where a
    curated example solves the task they are read from it."""
    distributions: tuple[str, ...] = ("normal", "large", "small", "heavy")
    """Magnitudes under which it must hold, names in `agent/verify/inputs.py`."""

    def shapes_of(self, family: str) -> tuple[Shape, ...]:
        """The shapes of one family."""
        return tuple(s for s in self.shapes if s.family == family)

    def operand_dtypes(self) -> dict[str, str]:
        """ "int" or "float" of every tensor that a kernel names as a parameter, for tracing."""
        return {
            i.name: "int" if i.dtype == "int64" else "float"
            for i in self.inputs
            if i.role not in ("a", "b") and i.default is None
        }

    @property
    def source_path(self) -> pathlib.Path:
        """The file that defines it."""
        return pathlib.Path(sys.modules[self.reference.__module__].__file__ or "")

    @property
    def digest(self) -> str:
        """SHA-256 of the defining file: a verdict belongs to exactly this task."""
        return hashlib.sha256(self.source_path.read_bytes()).hexdigest()


def lengths(shape: tuple[str, ...], dims: Dims) -> tuple[int, ...]:
    """Each length of a symbolic shape. Arithmetic with + - * // over dims and integers only."""
    return tuple(_length(ast.parse(text, mode="eval").body, dims) for text in shape)


def _length(node: ast.expr, dims: Dims) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if name in dims:
            return dims[name]
        case ast.BinOp(left=left, op=op, right=right):
            x, y = _length(left, dims), _length(right, dims)
            match op:
                case ast.Add():
                    return x + y
                case ast.Sub():
                    return x - y
                case ast.Mult():
                    return x * y
                case ast.FloorDiv():
                    return x // y
    raise InvalidTask(f"a length is not arithmetic over {', '.join(dims)}: {ast.unparse(node)!r}")


# the bank -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """What a listing shows of a task, read without importing it."""

    id: str
    title: str
    aliases: tuple[str, ...]
    family: str
    difficulty: int
    path: pathlib.Path


def cards(folder: pathlib.Path = FOLDER) -> dict[str, Card]:
    """Every task of the folder by id. Raises `InvalidTask` for a file whose card cannot be read."""
    found = [_card(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]
    return {card.id: card for card in sorted(found, key=lambda c: (c.difficulty, c.family, c.id))}


@functools.lru_cache(maxsize=256)
def _card_of(path: pathlib.Path, stamp: int) -> Card:
    fields: dict[str, Any] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Task":
            for keyword in value.keywords:
                if keyword.arg in ("id", "title", "aliases", "family", "difficulty"):
                    fields[keyword.arg] = ast.literal_eval(keyword.value)
    try:
        card = Card(path=path, **fields)
    except TypeError as error:
        raise InvalidTask(
            f"{path.name}: no readable card: {error}", hint="write `TASK = Task(id=…, …)` with literals"
        ) from error
    if card.id != path.stem:
        raise InvalidTask(f"{path.name}: the task's id is {card.id!r}", hint="name the file after the id")
    return card


def _card(path: pathlib.Path) -> Card:
    return _card_of(path, path.stat().st_mtime_ns)


def load(task_id: str, folder: pathlib.Path = FOLDER) -> Task:
    """A task by id. Raises `UnknownTask` or `InvalidTask`."""
    known = cards(folder)
    if task_id not in known:
        raise UnknownTask(task_id, near=_near(task_id, known))
    path = known[task_id].path
    try:
        module = _imported(path, task_id, folder)
    except Exception as error:  # whatever the file of a task's author raises
        what = f"{path.name} cannot be used: {type(error).__name__}: {error}"
        raise InvalidTask(what, hint="mend the file; `coda-agent lint` tries it again") from error
    task: Task = module.TASK
    return task


def _imported(path: pathlib.Path, task_id: str, folder: pathlib.Path) -> ModuleType:
    if folder == FOLDER:
        return importlib.import_module(f"{__package__}.tasks.{task_id}")
    spec = importlib.util.spec_from_file_location(f"coda_task_{task_id}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def find(text: str, folder: pathlib.Path = FOLDER) -> Card:
    """The task that free text means: its id, title or an alias, whatever the case and punctuation.

    Raises `UnknownTask` with near ones for anything else: a task is never guessed.
    """
    known = cards(folder)
    wanted = _plain(text)
    for card in known.values():
        if wanted in {_plain(name) for name in (card.id, card.title, *card.aliases)}:
            return card
    raise UnknownTask(text, near=_near(text, known))


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _near(text: str, known: Mapping[str, Card]) -> tuple[str, ...]:
    """Ids whose names resemble the text, best first."""
    wanted = _plain(text)
    words = set(wanted.split())

    def score(card: Card) -> float:
        names = [_plain(n) for n in (card.id, card.title, *card.aliases)]
        close = max(difflib.SequenceMatcher(None, wanted, n).ratio() for n in names)
        shared = max(len(words & set(n.split())) for n in names) / max(len(words), 1)
        return max(close, shared)

    ranked = sorted(known.values(), key=lambda c: -score(c))
    return tuple(c.id for c in ranked[:4] if score(c) >= 0.4)
