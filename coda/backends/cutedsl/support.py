"""What this backend runs: every reason against it is one sentence, and whatever has none is run exactly.

Pinned operators turn quack's own checks off and its compiled signature assumes alignment, so everything is asked here and in
the modules that write a program down. What is refused, and where:

    here           pointwise programs, empty matrices, fp32 and fp64 products, unaligned or doubly strided tensors, int scalars
                   inside a tile, matrices that leave no room for two stages
    lowering.py    moments, and statistics of columns, of another width than the product's; a selection by a computed index; two
                   outputs of full width beside unpaired columns; width 2 in other dtypes than 16 bits; fp8 of half or double
                   width or unsaturated; int outputs
    values.py      matrices of half the width; rows that repeat and have width 2, or that no tile of 128, 192 or 256 columns is
                   whole periods of
    segments.py    groups of columns that are no multiple of 32 or divide no such tile; of a matrix, of pairs, of another segment
                   reduction; outputs of segments that are not fp32, or depend on more than one reduction and constants
    integers.py    integers that may leave 32 bits; of 64 bits: matrices, and vectors of which a product, a quotient, a remainder, a
                   store, or a float beside a comparison is wanted
"""

from __future__ import annotations

from coda.backends.cutedsl import configs
from coda.backends.cutedsl.lowered import PLACES, SIXTEEN, Lowered
from coda.backends.cutedsl.lowering import lower
from coda.backends.registry import Support
from coda.errors import CodaError
from coda.problem import Problem
from coda.program import EpilogueProgram

MAX_SIZE = 2**31 - 1


def supports(program: EpilogueProgram, problem: Problem) -> Support:
    """Whether the program can be expressed on such tensors."""
    reason = _reason(program, problem)
    return Support(not reason, reason)


def _reason(program: EpilogueProgram, problem: Problem) -> str:
    if program.kind != "epilogue":
        return "a program without a GEMM has no mainloop to run behind"
    reason = _sizes(problem)
    if reason:
        return reason
    try:
        program.check_sizes(problem.n)
        lowered = lower(program, problem, 128, 128, "any")
    except CodaError as error:
        return error.what
    return _product(problem) or _operands(problem, lowered) or _outputs(problem, lowered) or _room(program, problem)


def _sizes(problem: Problem) -> str:
    try:
        configs.family(problem.arch)
    except CodaError as error:
        return f"{error.what}, not on {problem.arch or 'a CPU'}"
    if problem.dtype not in SIXTEEN:
        return f"the mainloop multiplies bfloat16 and float16, not {problem.dtype}"
    if min(problem.m, problem.n, problem.k) == 0:
        return "an empty matrix gives the mainloop nothing to walk over"
    if max(problem.m, problem.n, problem.k) > MAX_SIZE:
        return "a size beyond 2^31 - 1"
    return ""


def _product(problem: Problem) -> str:
    specs = dict(problem.tensors)
    for name in ("a", "b"):
        spec = specs[name]
        if spec.dtype != problem.dtype:
            return f"{name} is {spec.dtype} beside {problem.dtype}: the mainloop multiplies equal dtypes"
        if spec.layout == "any":
            return f"{name} is contiguous along neither dimension, which its loads by TMA need"
        if not spec.aligned:
            return (
                f"the base address or outer stride of {name} is not a multiple of 16 bytes, which its loads by TMA need"
            )
    return ""


def _room(program: EpilogueProgram, problem: Problem) -> str:
    if configs.fits(program, problem):
        return ""
    return "the matrices that the epilogue reads and writes leave no room in shared memory for two stages of a and b"


def _operands(problem: Problem, lowered: Lowered) -> str:
    for port in lowered.ports:
        if port.how == "scalar" and port.is_int:  # any value may come, also as a tensor that only the device reads
            return f"{port.operand} is an int scalar of 64 bits, and the epilogue computes integers in 32"
        if port.how in ("scalar", "count", "segment") or port.operand in PLACES:
            continue
        spec = problem.spec(port.operand)
        if port.how != "tile":
            if spec.layout != "row" or not spec.aligned:
                return f"{port.operand} is a strided or unaligned vector, which its loader does not take"
            continue
        if not spec.aligned or spec.layout == "any":
            return f"{port.operand} is not contiguous along a dimension with 16-byte aligned lines, which its loads by TMA need"
        if spec.layout == "col" and (port.view or lowered.mode == "acc_pair"):
            return f"{port.operand} is column-major, and pairs of columns must lie together"
    return ""


def _outputs(problem: Problem, lowered: Lowered) -> str:
    for store in lowered.stores:
        spec = problem.spec(f"out.{store.output}")
        if spec.layout != "row" or not spec.aligned:
            return f"{store.output} is not row-major with 16-byte aligned rows, which its store by TMA needs"
    for segment in lowered.segments:
        if problem.spec(f"out.{segment.output}").layout != "row":
            return f"{segment.output} is not row-major, as numbers per segment are written"
    return ""
