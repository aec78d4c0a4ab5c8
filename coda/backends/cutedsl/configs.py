"""Tiles, clusters and stages: what a schedule may say, what fits, and the shipped choice.

    PINNED        versions of the two packages that this backend's private parts are written against
    family        90 or 100 from "sm_90a"; raises `Unsupported`
    check         a schedule that the mainloop takes, or `BadSchedule`
    stages        how many A/B stages a program leaves room for on Hopper
    check_stages  the same, refusing fewer than two, which do not overlap loads and products
    candidates    schedules worth measuring; `valid` is check and check_stages without lowering by hand
    default       the heuristic, from measurements on one H200; fits: whether even that cannot be built

Fields of a `Schedule` that quack's mainloop does not know (warps, stages, split, …) keep their default: it chooses those.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import math
import pathlib
import re

from coda.backends.cutedsl.expressions import FAST
from coda.backends.cutedsl.lowered import TILE_COLUMNS, Lowered
from coda.backends.cutedsl.lowering import lower
from coda.backends.finishing import approximations
from coda.backends.finishing.anatomy import Anatomy
from coda.backends.finishing.cheaper import cheaper
from coda.backends.finishing.modules import GENERATOR
from coda.errors import BadSchedule, Unsupported
from coda.primitives.types import Kind
from coda.problem import ITEM_BYTES, Problem, Schedule
from coda.program import EpilogueProgram

PINNED = {"quack-kernels": ("0.6.5",), "nvidia-cutlass-dsl": ("4.7.1", "4.8.1")}
FAMILIES = {90: "Hopper", 100: "Blackwell"}

TILES = (64, 128, 192, 256)
PINGPONG_COLUMNS = {64: 256, 128: 208, 192: 128}
"""Rows of a ping-pong tile -> the most columns."""
MAX_TILE = 256 * 192
SHARED_MEMORY = 227 * 1024
RESERVED = 2 * 1024
"""Barriers, and the gap before the first A stage, which starts at a multiple of 1 KiB."""
TILE_K = 64
MIN_STAGES = 2

_CANDIDATES = 6
"""Raised with every change of `candidates`, of the heuristic, and of the generated function of an element."""
DEVICE_CODE = hashlib.sha256(
    b"".join(
        path.read_bytes()
        for path in (
            *(pathlib.Path(__file__).with_name(f"{name}.py") for name in ("operators", "moments", "maths", "private")),
            pathlib.Path(approximations.__file__),
        )
    )
).hexdigest()[:12]
"""Version of all device code, without importing CUTLASS: files below site-packages count for quack by their names alone."""
TABLE = f"{GENERATOR}.{_CANDIDATES}.{DEVICE_CODE}"
"""Version of all that decides how fast a schedule is: what was measured under another one is measured again."""
HOPPER_CANDIDATES = (
    (128, 256, False, 2),
    (128, 256, False, 1),
    (256, 128, False, 2),
    (256, 128, False, 1),
    (128, 192, True, 2),
    (128, 192, True, 1),
    (128, 128, True, 2),
    (128, 128, True, 1),
    (64, 256, True, 2),
    (64, 256, True, 1),
    (64, 128, True, 2),
    (64, 128, True, 1),
    (128, 64, True, 1),
)
"""tile_m, tile_n, ping-pong, cluster_m."""
BLACKWELL_CANDIDATES = (
    (128, 128, False, 1),
    (128, 256, False, 1),
    (256, 128, False, 2),
    (256, 192, False, 2),
    (256, 256, False, 2),
)


def versions_wrong() -> str:
    """A sentence about the installed packages, or nothing."""
    for package, known in PINNED.items():
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed"
        if found not in known:
            return f"{package} {found} is installed; this backend is written against {' or '.join(known)}"
    return ""


def family(arch: str | None) -> int:
    """The generation of mainloop that an architecture runs."""
    found = re.fullmatch(r"sm_(90|100|103)[af]?", arch or "")
    if found is None:
        raise Unsupported(
            "cutedsl runs on Hopper and Blackwell data-center GPUs",
            got=arch or "a CPU",
            expected="sm_90, sm_100 or sm_103",
        )
    return 90 if found[1] == "90" else 100


def target(arch: str) -> str:
    """The architecture as the compiler wants it: with its own instructions."""
    return arch if arch[-1] in "af" else f"{arch}a"


def check(schedule: Schedule, lowered: Lowered, generation: int) -> None:
    """Raise `BadSchedule` for what the mainloop does not take."""
    schedule.check_for("cutedsl")
    m, n = schedule.tile_m, schedule.tile_n
    step = 32 if (lowered.mode == "acc_pair" and lowered.stores) or m == 192 else 16
    if n % step or n > 256:
        raise BadSchedule("Schedule.tile_n", got=n, expected=f"a multiple of {step} up to 256 here")
    for port in lowered.ports:
        if n % port.whole:
            why = f"groups of {port.whole} columns are folded" if port.how == "segment" else f"{port.operand} repeats"
            raise BadSchedule("Schedule.tile_n", got=n, expected=f"a multiple of {port.whole}, since {why}")
    if (
        schedule.cluster_m * schedule.cluster_n > 4
        or schedule.cluster_m not in (1, 2, 4)
        or schedule.cluster_n not in (1, 2, 4)
    ):
        raise BadSchedule(
            "Schedule: cluster", got=f"{schedule.cluster_m}×{schedule.cluster_n}", expected="1, 2 or 4 tiles in all"
        )
    if generation == 100:
        if m not in (128, 256) or schedule.pingpong:
            raise BadSchedule(
                "Schedule on Blackwell",
                got=f"tile_m {m}, pingpong {schedule.pingpong}",
                expected="tile_m 128 or 256, no pingpong",
            )
        if n % 32 or (m == 256 and schedule.cluster_m % 2):
            raise BadSchedule(
                "Schedule on Blackwell",
                got=f"{m}×{n}, cluster_m {schedule.cluster_m}",
                expected="tile_n a multiple of 32, an even cluster_m for tile_m 256",
            )
        if n != 128 and any(port.how == "segment" and port.period % 64 for port in lowered.ports):
            raise BadSchedule(
                "Schedule.tile_n on Blackwell", got=n, expected="128 where groups of less than 64 columns are folded"
            )
        return
    if schedule.pingpong:
        if m not in PINGPONG_COLUMNS or n > PINGPONG_COLUMNS[m]:
            raise BadSchedule(
                "Schedule: a ping-pong tile", got=f"{m}×{n}", expected="at most 64×256, 128×208 or 192×128"
            )
    elif m not in TILES or m * n > MAX_TILE:
        raise BadSchedule(
            "Schedule: a tile", got=f"{m}×{n}", expected=f"tile_m of {TILES}, at most {MAX_TILE} elements"
        )


def stages(schedule: Schedule, lowered: Lowered, problem: Problem) -> int:
    """A/B stages on Hopper. Each store takes two parts of the tile, each load four, before A and B get the rest."""
    m, n = schedule.tile_m, schedule.tile_n
    cooperative = not schedule.pingpong and m % 64 == 0 and m >= 128 and not (m == 192 and n > 128)
    part = (math.gcd(192 if m == 192 else 128, m) if cooperative else 64) * math.gcd(32, n)
    parts = m * n // part
    stored = sum(
        _bytes(problem, f"out.{s.output}", s.view, s.name != "D" and lowered.mode == "acc_pair") for s in lowered.stores
    )
    loaded = sum(_bytes(problem, p.operand, p.view) for p in lowered.ports if p.how == "tile")
    vectors = 0
    for port in lowered.ports:
        if port.how in ("row", "spread", "col", "index"):
            vectors += (n if port.how in ("row", "spread") else m) * (
                4 if port.view or port.narrow else ITEM_BYTES[problem.spec(port.operand).dtype]
            )
        elif port.how == "segment":
            vectors += 4 * m * (n // port.period)
    vectors += sum(4 * n * (7 if cooperative else 3) for s in lowered.sinks if s.statistic.axis == "col")
    epilogue = vectors + part * stored * min(parts, 2) // 2 + part * loaded * min(parts, 4) // 2
    return max(0, (SHARED_MEMORY - RESERVED - epilogue) // ((m + n) * TILE_K * ITEM_BYTES[problem.dtype]))


def check_stages(schedule: Schedule, lowered: Lowered, problem: Problem) -> int:
    """The A/B stages on Hopper. One stage compiles too, and waits for every load: raises `BadSchedule`."""
    found = stages(schedule, lowered, problem)
    if found < MIN_STAGES:
        raise BadSchedule(
            f"this tile leaves room for {found} stages of A and B",
            got=f"{schedule.tile_m}×{schedule.tile_n}",
            expected=f"at least {MIN_STAGES}",
            hint="a smaller tile, for example 128×128 with pingpong",
        )
    return found


def _bytes(problem: Problem, name: str, view: bool, half: bool = False) -> int:
    """Bytes of two elements of the accumulator's width."""
    return 8 if view else ITEM_BYTES[problem.spec(name).dtype] * (1 if half else 2)


def default(program: EpilogueProgram, problem: Problem) -> Schedule:
    """What an untuned call runs: the best of `SPEEDS`, or a smaller tile where that leaves no room for enough stages."""
    first = _measured(program, problem)
    whole = _whole(program)
    narrow = next((n for n in TILE_COLUMNS if n % whole == 0), 128)
    m = min(first.tile_m, 128)
    pingpong = narrow <= PINGPONG_COLUMNS[m]
    smaller = dataclasses.replace(first, tile_m=m, tile_n=narrow, pingpong=pingpong and family(problem.arch) == 90)
    return first if _fits(first, program, problem) else smaller


def _whole(program: EpilogueProgram) -> int:
    """Columns that a tile must be a multiple of: of rows that repeat, and of segments."""
    repeated = [int(o.period / o.width) for o in program.operands if o.period]
    folded = [n.type.size for n in program.nodes if n.op.startswith("segment_")]
    return math.lcm(1, *repeated, *folded)


def valid(schedule: Schedule, program: EpilogueProgram, problem: Problem) -> None:
    """Raise `BadSchedule` where the mainloop does not take the schedule, or it leaves room for too few stages."""
    generation = family(problem.arch)
    lowered = lower(program, problem, schedule.tile_m, schedule.tile_n, "any", packed=generation == 100)
    check(schedule, lowered, generation)
    if generation == 90:
        check_stages(schedule, lowered, problem)


def _fits(schedule: Schedule, program: EpilogueProgram, problem: Problem) -> bool:
    """Whether the schedule is valid and leaves room for enough stages."""
    try:
        valid(schedule, program, problem)
    except BadSchedule:
        return False
    return True


def candidates(program: EpilogueProgram, problem: Problem) -> list[Schedule]:
    """Schedules worth measuring, the default first."""
    first = default(program, problem)
    tiles = HOPPER_CANDIDATES if family(problem.arch) == 90 else BLACKWELL_CANDIDATES
    found = [first]
    for m, n, pingpong, cluster in tiles:
        if m > 64 and m // 2 >= problem.m:  # more than half of every tile would be empty
            continue
        if cluster > 1 and problem.m <= m:  # a cluster's second tile would be beyond the matrix
            continue
        found.append(Schedule(backend="cutedsl", tile_m=m, tile_n=n, pingpong=pingpong, cluster_m=cluster))
    return [s for s in dict.fromkeys(found) if _fits(s, program, problem)]


def fits(program: EpilogueProgram, problem: Problem) -> bool:
    """Whether the shipped choice is one that can be built."""
    return _fits(default(program, problem), program, problem)


MULTIPROCESSORS = 132
"""Of an H100 or H200."""
SPEEDS = (
    (128, 128, 2, 1.0),
    (128, 192, 2, 1.04),
    (64, 256, 2, 0.92),
    (64, 128, 2, 0.8),
    (64, 64, 1, 0.48),
)
"""Rows, columns and cluster of ping-pong tiles, and how fast such tiles get through a matrix that fills every wave: 128×128 is 1.

From the suite at M = 128, 512, 1024, 4096 and 8192 on one H200, bf16, quack-kernels 0.6.5 on nvidia-cutlass-dsl 4.7.1
(2026-11-29): the choice by `_measured` was within 2 % of the best of up to 10 from M = 1024 on, within 8 % below. 128×256
without ping-pong was the best of a few light epilogues by 1 %. At M = 16384 and N = 2048 or 4096, where 128×128 fills 97 % and
128×192 94 % of the waves, 128×192 took 2 to 15 % less in six of seven programs of a layer and 1 % more in one (2026-11-30).
"""


INSTRUCTIONS = {
    "log2": 28,
    "log1p": 26,
    "expm1": 25,
    "log": 25,
    "sin": 17,
    "cos": 17,
    "erf": 14,
    "tanh": 12,
    "div": 10,
    "sigmoid": 9,
    "exp": 8,
    "exp_nonpositive": 5,
    "exp2": 5,
    "sqrt": 5,
    "rsqrt": 5,
}
"""How many machine instructions an operation takes on an element of sm_90, strict; 1 where it is not listed. Counted in the
machine code of a program of that operation alone (nvidia-cutlass-dsl 4.8.1)."""
FAST_INSTRUCTIONS = dict.fromkeys(FAST, 2) | {"erf": 13, "sigmoid": 4, "exp2": 1, "log2": 1, "tanh": 1}
"""The same where `fast_math=True` takes the hardware's approximation."""
BUSY, BUSY_SHORT = 33, 26
"""From so many instructions per element on, 128×192 cannot hide them behind the product, or behind one of fewer than `LONG` steps
of K: it spills, and its accumulator leaves 48 registers for them. Over cuBLAS at 8192³ it took 1.03 for SwiGLU backward (27), tanh
GELU and exact GELU backward (28, 31), 1.22 and 1.17 for two programs of tanh GeGLU backward (33, 37), 1.25 for a SwiGLU backward
of two sigmoids (36); 128×128, which spills nothing, 1.10 for exact GeGLU backward (42). At 16384×11008×4096 SwiGLU backward took
1.36 times as long with it as with 128×128, while RoPE from positions (24) was fastest with it at K = 2048 and 4096 (one H200, bf16,
2026-11-30). The first one bounds 128×256 too, where nothing of more than 8 without column sums was measured."""
LONG = 8192
"""Steps of K that hide much of what follows; see `BUSY_SHORT` and `WIDEST`."""


def _instructions(program: EpilogueProgram) -> float:
    """Per element of the product, inside the tile."""
    costs = INSTRUCTIONS | FAST_INSTRUCTIONS if program.fast_math else INSTRUCTIONS
    nodes = [cheaper(program.nodes, program.nodes[i], program.fast_math) for i in Anatomy(program).in_tile]
    return float(sum(costs.get(n.op, 1) * n.type.width for n in nodes if n.type.kind is Kind.TILE))


LIGHT = 6
"""Instructions per element up to which an epilogue need not run beside another tile's product."""
WIDEST = (128, 256, 2, 1.03)
"""As in `SPEEDS`, without ping-pong, for light epilogues behind a product of at least `LONG` steps of K: at 4096×4096×11008 it took
3 % less than 128×128 for three programs that add a residual; at K = 4096 it was between 1 % less and 6 % more for such programs,
and half as fast for those that read two columns per accumulator (one H200, bf16, 2026-11-30)."""


def _measured(program: EpilogueProgram, problem: Problem) -> Schedule:
    """The tile that wastes least: of the last wave, of what lies beyond the matrix, of its own speed."""
    if family(problem.arch) == 100:
        return Schedule(backend="cutedsl", tile_m=128, tile_n=128, cluster_m=1)
    whole, instructions = _whole(program), _instructions(program)
    wide = WIDEST[1] % whole == 0 and _reads_little(program) and instructions < BUSY
    if wide and _one_wave_of_rows(problem):
        return Schedule(backend="cutedsl", tile_m=128, tile_n=256, cluster_m=2)
    possible = [tile for tile in SPEEDS if tile[1] % whole == 0] or list(SPEEDS)
    busy = instructions >= (BUSY if problem.k >= LONG else BUSY_SHORT)
    tiles = [tile for tile in possible if tile[1] != 192 or not busy] or possible
    if wide and instructions <= LIGHT and problem.k >= LONG:
        tiles = [*tiles, WIDEST]
    m, n, cluster, _ = max(tiles, key=lambda tile: tile[3] * _filled(problem, tile[0], tile[1]))
    if problem.m <= m:  # a cluster's second tile would be beyond the matrix
        cluster = 1
    return Schedule(backend="cutedsl", tile_m=m, tile_n=n, pingpong=(m, n) != WIDEST[:2], cluster_m=cluster)


def _reads_little(program: EpilogueProgram) -> bool:
    """Whether 128×256 without ping-pong holds its values: it reads at most one column per accumulator, and sums up no columns."""
    read = sum(o.width for o in program.operands if o.kind is Kind.TILE)
    return read <= 1 and not any(s.axis == "col" for s in Anatomy(program).statistics)


def _one_wave_of_rows(problem: Problem) -> bool:
    """Whether tiles of 128×256 hold whole rows, so that A is read once, and are one wave, at least half of one. With them, without
    ping-pong, `router_scores` took 58 µs at 16384×256×4096 and `rms_swiglu` 57, with the 128×128 of ping-pong 71 and 67;
    `gelu_backward`, which sums up columns, 78 with either (one H200, bf16, 2026-11-30)."""
    return 128 < problem.n <= 256 and MULTIPROCESSORS // 2 <= math.ceil(problem.m / 128) <= MULTIPROCESSORS


def _filled(problem: Problem, tile_m: int, tile_n: int) -> float:
    """The part of all multiprocessors' tiles, over all waves, that is inside the matrix."""
    tiles = math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n)
    waves = max(1, math.ceil(tiles / MULTIPROCESSORS))
    return problem.m * problem.n / (waves * MULTIPROCESSORS * tile_m * tile_n)
