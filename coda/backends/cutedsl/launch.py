"""From a lowered program to a running kernel, by way of quack's front end.

    Shape     what planning reads of a tensor that is not there: plans are made before any tensor is
    modified  Lowered -> quack's epilogue object, once per text
    Runner    a program made ready for one problem and schedule: plans, partials, finisher

A plan compiles (or loads from quack's disk cache) and launches nothing; running it makes no decision. quack's own
dictionaries have no locks, so planning holds one. A generated function lives in a module of its own under a file name
that only `linecache` knows: quack's identity of a kernel is the function's text, and it must find it.
"""

from __future__ import annotations

import functools
import linecache
import math
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cutlass
import torch
from quack.epilogue import F2, gemm_epilogue, pack
from quack.epilogue.ops import ColVecLoad, RowVecLoad, Scalar, TileLoad
from quack.gemm_config import GemmConfig

from coda.backends.cutedsl import configs, finish, maths, operators, private
from coda.backends.cutedsl.lowered import FOLDS, PLACES, Lowered, Port, SegmentStore, Sink
from coda.backends.cutedsl.lowering import lower
from coda.backends.finishing.anatomy import Anatomy
from coda.backends.finishing.straight import Line
from coda.errors import CodaError, CompileError, Unsupported
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram

_LOCK = threading.RLock()


@dataclass(frozen=True)
class Shape:
    """A tensor's metadata, with the methods by which quack reads it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    def stride(self, dim: int | None = None) -> Any:
        """As torch."""
        return self.strides if dim is None else self.strides[dim]

    def numel(self) -> int:
        """As torch."""
        return math.prod(self.shape)

    def storage_offset(self) -> int:
        """As torch."""
        return 0

    def element_size(self) -> int:
        """As torch."""
        return int(self.dtype.itemsize)


@functools.lru_cache(maxsize=1024)
def modified(lowered: Lowered) -> Any:
    """quack's object for the function. Call under the lock."""
    functions = {n: v for n, v in vars(maths).items() if isinstance(v, types.FunctionType)}
    names = {n: operators.Named(n, f) for n, f in functions.items()}
    module = types.ModuleType(f"coda_gen_{lowered.function}")
    vars(module).update(
        names,
        pack=pack,
        F2=F2,
        Float32=cutlass.Float32,
        Int32=cutlass.Int32,
        Boolean=cutlass.Boolean,
        inf=math.inf,
        nan=math.nan,
    )
    file = f"<coda {lowered.function}>"
    linecache.cache[file] = (len(lowered.source), None, lowered.source.splitlines(keepends=True), file)
    sys.modules[module.__name__] = module
    exec(compile(lowered.source, file, "exec"), vars(module))  # noqa: S102 -- our own generator's text
    ports = {p.name: _port(p) for p in lowered.ports}
    alone = sum(s.mask == "elements" for s in lowered.sinks) == 1
    return gemm_epilogue(
        outputs=tuple(s.name for s in lowered.stores if s.name != "D"),
        ops={p.name: ports[p.name] for p in lowered.parameters},
        outs={s.name: _sink(s, ports, alone) for s in lowered.sinks},
        extra_ops=(
            *(ports[p.name] for p in lowered.ports if p.how == "index"),
            *(_segment_out(s, lowered, vars(module)) for s in lowered.segments),
        ),
        mode=lowered.mode,
        vectorize=False,
        **_prepass(lowered, vars(module)),
    )(vars(module)[lowered.function])


def _prepass(lowered: Lowered, module: Mapping[str, Any]) -> dict[str, Any]:
    if not lowered.prepass:
        return {}
    folded = tuple(p.name for p in lowered.ports if p.how == "segment")
    return {"prepass": module[lowered.prepass], "prepass_outs": folded}


def _segment_out(store: SegmentStore, lowered: Lowered, module: Mapping[str, Any]) -> Any:
    port = next(p for p in lowered.ports if p.name == store.segment)
    function = operators.Named(store.function, module[store.function])
    return operators.segment_out(store.name, port.name, port.fold, function)  # type: ignore[no-untyped-call]  # device code


def _port(port: Port) -> Any:
    if port.how in ("scalar", "count"):
        return Scalar(port.name, dtype=cutlass.Int32 if port.is_int else cutlass.Float32)
    if port.how == "segment":
        return operators.Segment(port.name, port.fold)  # type: ignore[no-untyped-call]  # device code
    if port.how == "spread":
        spread = operators.SpreadNarrow if port.narrow else operators.SpreadRow if port.wide else operators.SpreadAny
        return spread(port.name, port.half, port.period)
    if port.narrow:
        return (operators.NarrowRow if port.how == "row" else operators.NarrowCol)(port.name)
    return {"tile": TileLoad, "row": RowVecLoad, "col": ColVecLoad, "index": ColVecLoad}[port.how](port.name)


def _sink(sink: Sink, ports: Mapping[str, Any], alone: bool) -> Any:
    s = sink.statistic
    if s.fold == "select":
        return operators.SelectColumn(sink.name, ports[sink.index])
    if s.fold == "logsumexp":
        return operators.LogSumExp(sink.name, sink.mask)  # type: ignore[no-untyped-call]  # device code
    if s.fold == "moments":
        return operators.Moments(sink.name, sink.mask)  # type: ignore[no-untyped-call]  # device code
    cls = operators.RowStatistic if s.axis == "row" else operators.ColumnStatistic
    return cls(sink.name, FOLDS[s.fold], sink.mask, sink.scaled, alone)


@dataclass
class Runner:
    """A program made ready for one problem."""

    program: EpilogueProgram
    problem: Problem
    schedule: Schedule
    arch: str
    lowered: Lowered = field(init=False)
    ab_stages: int | None = field(init=False, default=None)
    """A/B stages as worked out before compiling; None where that is not known (Blackwell)."""
    _plans: dict[Any, Any] = field(init=False, default_factory=dict)
    _places: dict[Any, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        p, s = self.problem, self.schedule
        generation = configs.family(self.arch)
        self.lowered = lower(self.program, p, s.tile_m, s.tile_n, operators.VERSION, packed=generation == 100)
        configs.check(s, self.lowered, generation)
        if generation == 90:
            self.ab_stages = configs.check_stages(s, self.lowered, p)
        two = generation == 100 and s.cluster_m % 2 == 0  # two CTAs share a tile, and each counts its half as a tile
        self.tiles_m = -(-p.m // (s.tile_m // 2 if two else s.tile_m))
        self.slots = -(-p.n // s.tile_n)
        self.partials = finish.Partials(Anatomy(self.program), p.m, p.n, self.slots, self.tiles_m)
        self.config = GemmConfig(
            tile_m=s.tile_m,
            tile_n=s.tile_n,
            pingpong=s.pingpong,
            cluster_m=s.cluster_m,
            cluster_n=s.cluster_n,
            max_swizzle_size=s.group_m,
            is_dynamic_persistent=generation == 100,  # on Hopper that would need a zeroed counter per run
            device_capacity=generation // 10,
        )
        self._read: list[tuple[str, Callable[[Mapping[str, Any]], Any]]] = [
            (port.name, self._getter(port)) for port in self.lowered.ports
        ]
        self._sinks = [(sink.name, self.partials.place(sink.statistic)) for sink in self.lowered.sinks]
        self._size = self.partials.size
        self._scalars = [port for port in self.lowered.ports if port.how == "scalar"]

    @functools.cached_property
    def finisher(self) -> finish.Finish | None:
        """The kernel that writes the vector outputs."""
        return finish.make(self.program, self.problem, self.slots, self.tiles_m, self.schedule.tile_n)

    # planning -----------------------------------------------------------------------------------------------------------
    def prepare(self, device: Any) -> Any:
        """Compile for scalars that are numbers, before there is a tensor. Returns quack's plan."""
        p = self.problem
        shapes: dict[str, Any] = {"a": (p.m, p.k), "b": (p.k, p.n)}
        shapes |= {o.name: o.shape(p.m, p.n) for o in self.program.operands if o.kind != "scalar"}
        shapes |= {f"out.{o.name}": self.program.output_shape(o.name, p.m, p.n) for o in self.program.outputs}
        shapes |= {name: (count,) for name, count in self._counts.items()}
        stands = {name: self._stand(name, shape, device) for name, shape in shapes.items()}
        operands: dict[str, Any] = {}
        for port in self.lowered.ports:
            if port.how in ("scalar", "count"):
                operands[port.name] = 0
            elif port.how == "segment":
                operands[port.name] = port.period
            else:
                operands[port.name] = _viewed_shape(stands[port.operand]) if port.view else stands[port.operand]
        stores = {
            s.name: _viewed_shape(stands[f"out.{s.output}"]) if s.view else stands[f"out.{s.output}"]
            for s in self.lowered.stores
        }
        operands |= {s.name: stands[f"out.{s.output}"] for s in self.lowered.segments}
        sinks = {name: Shape(shape, strides, torch.float32, device) for name, (shape, strides, _) in self._sinks}
        return self._plan((), stands["a"], stands["b"], stores, {**operands, **sinks})

    def _stand(self, name: str, shape: tuple[int, ...], device: Any) -> Shape:
        specs = dict(self.problem.tensors)
        if name not in specs:  # row and column numbers
            return Shape(shape, (1,), torch.int32, device)
        spec = specs[name]
        if len(shape) == 1:
            return Shape(shape, (1,), getattr(torch, spec.dtype), device)
        rows, columns = shape
        strides = (1, _padded(rows)) if spec.layout == "col" else (_padded(columns), 1)
        return Shape(shape, strides, getattr(torch, spec.dtype), device)

    def _plan(self, form: Any, a: Any, b: Any, stores: Mapping[str, Any], others: Mapping[str, Any]) -> Any:
        with _LOCK:
            if form not in self._plans:
                try:
                    mod = modified(self.lowered)
                    plan = mod.plan(a, b, out=dict(stores), config=self.config, **others)
                except (CodaError, OSError, MemoryError, torch.OutOfMemoryError):
                    raise  # the machine's: another time it may do
                except Exception as error:
                    raise compile_error(self.program.name, error) from error
                private.forget_plans(mod)
                plan.scratch = {}  # the partials of the tensors that happened to come first
                self._plans[form] = plan
            return self._plans[form]

    # running ------------------------------------------------------------------------------------------------------------
    def run(self, tensors: Mapping[str, Any]) -> None:
        """Launch on the tensors' device and its current stream; nothing waits."""
        device = tensors["a"].device
        if device.type != "cuda":
            raise Unsupported("cutedsl runs on a GPU", got=str(device))
        if torch.cuda.current_device() == device.index:
            self._launch(tensors, device)
        else:
            with torch.cuda.device(device):
                self._launch(tensors, device)

    def _launch(self, tensors: Mapping[str, Any], device: Any) -> None:
        others = {name: get(tensors) for name, get in self._read}
        stores = {}
        for store in self.lowered.stores:
            out = tensors[f"out.{store.output}"]
            stores[store.name] = out.view(torch.float32) if store.view else out
        partials = None
        if self._size:
            partials = torch.empty(self._size, dtype=torch.float32, device=device)
            for name, place in self._sinks:
                others[name] = partials.as_strided(*place)
        for segment in self.lowered.segments:
            others[segment.name] = tensors[f"out.{segment.output}"]
        form = tuple(port.name for port in self._scalars if isinstance(others[port.name], torch.Tensor))
        plan = self._plans.get(form)
        if plan is None:
            plan = self._plan(form, tensors["a"], tensors["b"], stores, others)
        plan.run(tensors["a"], tensors["b"], out=stores, scratch={}, **others)
        if self.finisher is not None:
            self.finisher.run(tensors, partials)

    def straight(self, tensors: Mapping[str, Any], names: Sequence[str]) -> Callable[..., None] | None:
        """See `registry.Straight`."""
        device = tensors["a"].device
        form = tuple(port.name for port in self._scalars if isinstance(tensors[port.operand], torch.Tensor))
        found = private.inside(self._plans[form]) if form in self._plans else None
        if found is None:
            return None
        line = Line(names, tensors, device.index or 0)
        values = {port.name: self._expression(line, port, tensors) for port in self.lowered.ports}
        for store in self.lowered.stores:
            place = line.value(f"out.{store.output}")
            values[store.name] = line.keep(f"{place}.view(float32)") if store.view else place
        for segment in self.lowered.segments:
            values[segment.name] = line.value(f"out.{segment.output}")
        partials, places = self._places_of_partials(line)
        values |= places
        if found.numbers != {port.name for port in self.lowered.ports if port.how in ("scalar", "count")} & found.taken:
            return None
        fields = "".join(f"{values[name] if name in found.taken else None}, " for name in found.fields)
        line.text.known |= {"float32": torch.float32, "aligned": _aligned}
        function, scheduler = line.text.name("function", found.function), line.text.name("scheduler", found.scheduler)
        given = (
            f"{line.value('a')}, {line.value('b')}, {values.get('D')}, None, ({fields}), {scheduler}, None, None, None"
        )
        line.text.line(f"{function}({given})")
        finisher = self.finisher
        if finisher is None:
            return line.function(self.run, None)
        if not line.kernel(finisher.dispatch, finisher.blocks, partials, {}):
            return None
        return line.function(self.run, finisher.dispatch.hooks)

    def _expression(self, line: Line, port: Port, tensors: Mapping[str, Any]) -> str:
        """What `_getter` gets, as text; a number as quack wraps it."""
        name = port.operand
        if port.how == "segment":
            return "None"  # its columns are compiled in
        if port.how == "count" or name in PLACES:
            return line.text.name("always", self._getter(port)(tensors))
        if port.how == "scalar" and not isinstance(tensors[name], torch.Tensor):
            return line.number(name, float)
        place = line.value(name)
        if port.how == "scalar":
            if tensors[name].dtype is not torch.float32:
                place = line.keep(f"{place}.float()")
            return f"{place}.data_ptr()"
        if port.view:
            return line.keep(f"{place}.view(float32)")
        if port.how != "tile" and self.problem.spec(name).dtype == "int64":
            return line.keep(f"aligned({place})")
        return place

    def _places_of_partials(self, line: Line) -> tuple[str | None, dict[str, str]]:
        """The names of the workspace, and of each statistic's place in it; where there is one alone, they are the same."""
        if not self._size:
            return None, {}
        (name, (shape, strides, start)), *more = self._sinks
        if not more and start == 0 and math.prod(shape) == self._size:
            partials = line.memory(shape, strides)
            return partials, {name: partials}
        partials = line.memory(self._size)
        return partials, {
            name: line.keep(f"{partials}.as_strided(*{line.text.name('place', place)})") for name, place in self._sinks
        }

    def build_finisher(self, tensors: Mapping[str, Any]) -> None:
        """Compile the finisher for such a launch; nothing runs."""
        if self.finisher is not None:
            device = tensors["a"].device
            partials = torch.empty(self._size, dtype=torch.float32, device=device) if self._size else None
            self.finisher.dispatch.build(self.finisher.blocks, tensors, partials, {})

    def _getter(self, port: Port) -> Callable[[Mapping[str, Any]], Any]:
        name = port.operand
        if port.how == "count":
            size = self.problem.m if name == "rows" else self.problem.n
            return lambda tensors: size
        if port.how == "segment":
            return lambda tensors: port.period
        if port.how == "scalar":
            return functools.partial(_scalar, name)
        if name in PLACES:
            return functools.partial(self._numbers, self._counts[name])
        if port.view:
            return lambda tensors: tensors[name].view(torch.float32)
        if port.how != "tile" and self.problem.spec(name).dtype == "int64":
            return lambda tensors: _aligned(tensors[name])
        return lambda tensors: tensors[name]

    @functools.cached_property
    def _counts(self) -> dict[str, int]:
        """Lengths of the vectors of positions."""
        return dict(zip(PLACES, (self.problem.m, self.problem.n, self.problem.n // 2), strict=True))

    def _numbers(self, count: int, tensors: Mapping[str, Any]) -> Any:
        """0 … count - 1 on the tensors' device, made once."""
        device = tensors["a"].device
        if (device, count) not in self._places:
            self._places[device, count] = torch.arange(count, dtype=torch.int32, device=device).view(torch.float32)
        return self._places[device, count]


def _padded(count: int) -> int:
    """A stride in elements that keeps every line aligned."""
    return -(-count // 16) * 16


def _viewed_shape(x: Shape) -> Shape:
    """As `tensor.view(torch.float32)`."""
    ratio = torch.float32.itemsize // x.dtype.itemsize
    strides = tuple(s if s == 1 else s // ratio for s in x.strides)
    return Shape((*x.shape[:-1], x.shape[-1] // ratio), strides, torch.float32, x.device)


def _aligned(x: Any) -> Any:
    """The vector at a multiple of 32 bytes, which the loader of 64-bit numbers assumes; PyTorch allocates at 512."""
    return x if x.data_ptr() % 32 == 0 else x.clone()


def _scalar(name: str, tensors: Mapping[str, Any]) -> Any:
    """A number, or a 0-d tensor of the dtype that is read on the device."""
    value = tensors[name]
    return value.float() if isinstance(value, torch.Tensor) else value


def compile_error(name: str, error: Exception) -> Exception:
    """What quack or the compiler raised, as one of ours."""
    text = f"{type(error).__name__}: {error}"
    return CompileError(f"{name}: quack's front end or the compiler refused the generated code", got=text[-2000:])
