"""A program written down, and what it costs before anything runs.

explain   formula with named common parts, shapes, primitives by class, flops and mandatory bytes
cost      flops of the GEMM and of the epilogue, and the bytes that any kernel must move
Cost      the numbers, and the time that no kernel can beat on given rates
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coda.primitives.types import Kind, Type
from coda.primitives.value import OPS, Node
from coda.problem import ITEM_BYTES, Problem, compute_dtype
from coda.program import EpilogueProgram

LEAVES = ("acc", "operand", "const", "row_index", "column_index", "rows", "columns")


@dataclass(frozen=True)
class Cost:
    """What a program needs on a problem, whoever runs it."""

    gemm_flops: int
    """2·M·N·K."""
    epilogue_flops: int
    bytes_read: int
    """Every operand once, `a` and `b` included."""
    bytes_written: int
    """Every output once."""

    @property
    def flops(self) -> int:
        """All floating-point operations."""
        return self.gemm_flops + self.epilogue_flops

    @property
    def bytes(self) -> int:
        """All mandatory traffic."""
        return self.bytes_read + self.bytes_written

    def floor_seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """The time that no kernel can beat: the GEMM at that rate, or the traffic at that bandwidth."""
        return max(self.gemm_flops / flops_per_second, self.bytes / bytes_per_second)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.gemm_flops + other.gemm_flops,
            self.epilogue_flops + other.epilogue_flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


def _elements(t: Type, m: int, n: int) -> int:
    match t.kind:
        case Kind.TILE | Kind.SEGMENT:
            return m * t.columns(n)
        case Kind.COL:
            return m
        case Kind.ROW:
            return t.columns(n)
        case _:
            return 1


def cost(program: EpilogueProgram, problem: Problem) -> Cost:
    """Flops and mandatory bytes. Tensors that the problem does not describe count in their default dtype."""
    m, n, k = problem.m, problem.n, problem.k
    dtypes = {name: spec.dtype for name, spec in problem.tensors}
    gemm = 2 * m * n * k if program.kind == "epilogue" else 0
    flops = 0.0
    for node in program.nodes:
        types = [node.type, *(program.nodes[i].type for i in node.args)]
        flops += OPS[node.op].flops * max(_elements(t, m, n) for t in types)
    read = (m * k + k * n) * ITEM_BYTES[problem.dtype] if program.kind == "epilogue" else 0
    used = {node.attr("name") for node in program.nodes if node.op == "operand"}
    for operand in program.operands:
        if operand.name not in used or operand.kind is Kind.SCALAR:
            continue
        size = 1
        for length in operand.shape(m, n):
            size *= length
        default = problem.dtype if operand.kind is Kind.TILE else compute_dtype(problem.dtype)
        read += size * ITEM_BYTES[dtypes.get(operand.name, default)]
    written = 0
    for output in program.outputs:
        dtype = dtypes.get(f"out.{output.name}", program.output_dtype(output.name, problem.dtype))
        written += _elements(program.nodes[output.node].type, m, n) * ITEM_BYTES[dtype]
    return Cost(gemm, int(flops), read, written)


def formulas(program: EpilogueProgram) -> list[str]:
    """One line per common part and per output, arguments before uses."""
    uses = Counter(i for node in program.nodes for i in node.args)
    lines: list[str] = []
    text: dict[int, str] = {}
    parts = 0
    for index, node in enumerate(program.nodes):
        written = _formula(node, [text[i] for i in node.args])
        if uses[index] > 1 and node.op not in LEAVES:
            parts += 1
            lines.append(f"t{parts} = {_outer(written)}")
            written = f"t{parts}"
        text[index] = written
    for output in program.outputs:
        rounding = f"  as {output.dtype}" if output.dtype else ""
        lines.append(f"{output.name} = {_outer(text[output.node])}{rounding}")
    return lines


def _outer(text: str) -> str:
    """Without the one pair of brackets around everything."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and at < len(text) - 1:
            return text
    return text[1:-1]


def _formula(node: Node, args: list[str]) -> str:
    attrs = dict(node.attrs)
    if node.op == "operand":
        return str(attrs["name"])
    if node.op == "const" and isinstance(attrs["value"], float):
        return f"{attrs['value']:.6g}"
    return OPS[node.op].formula.format(*args, **attrs)


def _symbolic(t: Type) -> str:
    columns = {"1/2": "N/2", "1": "N", "2": "2N"}[str(t.width)]
    match t.kind:
        case Kind.TILE:
            return f"(M, {columns})"
        case Kind.SEGMENT:
            return f"(M, {columns}/{t.size})"
        case Kind.COL:
            return "(M,)"
        case Kind.ROW:
            return f"({columns},)"
        case _:
            return "()"


def _stored(program: EpilogueProgram, name: str, problem: Problem | None) -> str:
    """The dtype that an output is stored in: by name, or without a problem by what decides it."""
    if problem is not None:
        dtypes = {tensor: spec.dtype for tensor, spec in problem.tensors}
        return dtypes.get(f"out.{name}", program.output_dtype(name, problem.dtype))
    output = next(o for o in program.outputs if o.name == name)
    first = program.first_tile
    decides = "a" if program.kind == "epilogue" or first is None else first.name
    if output.dtype is not None:
        return output.dtype
    if program.nodes[output.node].type.kind is Kind.TILE:
        return f"in the dtype of {decides}"
    return f"float32, float64 where {decides} is"


def explain(program: EpilogueProgram, problem: Problem | None = None) -> str:
    """The program as text for a person; with a problem, its cost too."""
    lines = [
        f"{program.name}: {program.kind}, digest {program.digest[:12]}" + (", fast maths" if program.fast_math else "")
    ]
    if program.doc:
        lines.append(f"  {program.doc.splitlines()[0]}")
    lines.append("inputs")
    if program.kind == "epilogue":
        lines += ["  a (M, K), b (K, N), acc = a·b (M, N)"]
    for o in program.operands:
        node_type = Type(o.kind, o.width, o.dtype)
        shape = f"({o.period},) repeated" if o.period else _symbolic(node_type)
        default = "" if o.default is None else f" = {o.default!r}"
        lines.append(f"  {o.name} {shape} {o.dtype}{default}")
    lines.append("formula")
    lines += [f"  {line}" for line in formulas(program)]
    lines.append("outputs")
    for out in program.outputs:
        t = program.nodes[out.node].type
        phase = ", finished by a reduction over all tiles" if t.finished else ""
        lines.append(f"  {out.name} {_symbolic(t)} {_stored(program, out.name, problem)}{phase}")
    lines.append("primitives by class")
    classes: dict[int, Counter[str]] = {}
    for node in program.nodes:
        if node.op != "const":
            loads_tile = node.op == "operand" and node.type.kind is Kind.TILE
            classes.setdefault(3 if loads_tile else OPS[node.op].primitive_class, Counter())[node.op] += 1
    for number in sorted(classes):
        lines.append(
            f"  {number}: " + ", ".join(f"{name}×{c}" if c > 1 else name for name, c in sorted(classes[number].items()))
        )
    if problem is not None:
        c = cost(program, problem)
        lines.append(f"cost at {problem.m}×{problem.n}×{problem.k} {problem.dtype}")
        lines.append(f"  GEMM {c.gemm_flops / 1e9:.3f} GFLOP, epilogue {c.epilogue_flops / 1e9:.3f} GFLOP")
        lines.append(
            f"  mandatory traffic: {c.bytes_read / 2**20:.3f} MiB read, {c.bytes_written / 2**20:.3f} MiB written"
        )
    return "\n".join(lines)
