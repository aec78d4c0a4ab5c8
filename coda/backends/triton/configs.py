"""Which schedules a kernel can have, and which one a call gets that nobody has tuned.

    check               raise `BadSchedule` for a schedule that this backend cannot run on this program
    default_schedule    the shipped heuristic: measured shapes of one H200, a cost model for the choice between them
    candidates          schedules worth measuring for a program on a problem
    limits              what an architecture offers

What the heuristic rests on: measurements of 2026-11-29 on one H200 (Triton 3.6, torch 2.11, bf16, cold L2, time over the
time of cuBLAS's GEMM alone in the same run, finisher included; eN = split N, p = persistent, n = one program per tile).

    128x256x64, 8 warps, 3 stages, p      rms_scale 1.014 at 4096, 0.996 at 8192: as fast as cuBLAS. On 128 SMs or fewer
                                          n with 4 stages: residual_rms 1.154 (p 1.160), swiglu_backward 1.287 (p 1.341)
    128x128x64, 8 warps, 6 stages, n      M = 512: rms_scale 0.98-1.01, 4 stages 1.14, 4 warps 1.02, 64x128x128 1.32
    64x128x128, 4 warps, 4 stages, n      M = 256: 0.974; 128x128 1.14, 64x64 1.05
    64x64x128, 4 warps, 4 stages, n       M = 128: 1.167; 64x128 1.20
    64x32x128, 4 warps, 6 stages, n       M = 64: 1.092; 64x64 1.25, 16x64 1.226
    16x32x256, 4 warps, 4 stages, n       M = 16: 0.984; 16x64x128 1.093, 64x64 1.147
    split at 4096 (128x256)               swiglu_backward e8 1.27, e4 1.34, e2 1.85 (spills); rms_backward e4 1.27, e2 1.47,
                                          e8 1.36 (rows of 64 bytes); residual_rms e4 1.135, e2 1.134; rms_rope e4 1.063,
                                          e2 1.077; cross-entropy e1 1.067, e2 1.073, e4 1.105; gemm_swiglu e2 1.045
    split at M = 512 (128x128)            swiglu_backward e4 1.324, e2 1.358, e1 2.38 (spills); rms_backward e2 1.333
    two programs per SM (128x128, 4 warps)   slower: swiglu_backward 1.48 where one of 128x256 had 1.36, rms_scale 1.05
    group_m 4, 16                         as 8 at 4096; at 8192 4 is 2 % slower, 16 equal

K in slices (kN; over the best of one slice, 2026-11-29, N = K = 4096):
    64x128x128 k2                         M = 128: residual_rms 0.82, swiglu_backward 0.85, the others 0.91 to 0.95; 128x128
                                          k2 and k4 about 1. Without it torch.compile is 1 to 5 % faster for light epilogues
    128x128x64 k2                         M = 256: swiglu_backward 0.89, residual_rms 0.97, the others 1.04 to 1.14
    128x256x64 k2                         M = 512: 1.14 to 1.35; N = K = 8192: 1.02 to 1.16 from M = 128 on
So they are the default for up to 128 rows where 64x128 tiles fill no more than half of the multiprocessors, and candidates
wherever the tiles of some row of the table do (`_sliced`).

How the text of a kernel came to be what it is (4096, same day): pairs moved as integers instead of reshaped, a reciprocal
instead of a division: swiglu_backward 2.48 -> 1.36 with e8; statistics merged over a tile's parts and a wider, single-pass
finisher: 1.36 -> 1.28, cross-entropy 1.109 -> 1.073; tiles read one part ahead: 1.28 -> 1.26, with e4 1.415 -> 1.325. Tried
without gain: prefetching the epilogue's tiles to L2 (2 to 9 % slower), evict-first loads and streaming stores (equal),
launching the finisher early behind a persistent kernel (equal; behind a short one it saves 1 to 2 µs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coda.backends.triton.tiling import Tiling
from coda.errors import BadSchedule, Unsupported
from coda.problem import ITEM_BYTES, Problem, Schedule
from coda.program import EpilogueProgram

TABLE = 3
"""Version of `candidates`: schedules that were measured among others are measured again."""

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")


@dataclass(frozen=True)
class Limits:
    """What an architecture offers."""

    shared: int
    """Bytes of shared memory per program."""
    sms: int
    """Multiprocessors of its largest common product: for the heuristic alone."""


def limits(arch: str | None) -> Limits:
    """The limits of an architecture (of a H200 where it is not known)."""
    known = {
        80: Limits(163 << 10, 108),
        86: Limits(99 << 10, 82),
        89: Limits(99 << 10, 128),
        120: Limits(99 << 10, 170),
    }
    return known.get(capability(arch), Limits(227 << 10, 132))


def capability(arch: str | None) -> int:
    """90 for "sm_90"; 0 for the CPU. Raises `Unsupported` for a name that is none."""
    if arch is None:
        return 0
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdigit() or int(digits) < 80:
        raise Unsupported("triton: no such architecture", got=repr(arch), expected=", ".join(ARCHS))
    return int(digits)


def has_tma(arch: str | None) -> bool:
    """Whether tensors can be read through descriptors."""
    return capability(arch) >= 90


def has_fp8(arch: str | None) -> bool:
    """Whether the hardware converts to fp8; elsewhere its bytes are computed."""
    return capability(arch) >= 89


# validity ---------------------------------------------------------------------------------------------------------


def check(program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> None:
    """Raise `BadSchedule` where no kernel can have this schedule."""
    schedule.check_for("triton")
    anatomy = Tiling(program)
    gemm = program.kind == "epilogue"
    smallest = 16 if gemm else 1
    for name in ("tile_m", "tile_n", "tile_k", "split", "warps"):
        value = getattr(schedule, name)
        if value & (value - 1):
            raise BadSchedule(f"triton: Schedule.{name}", got=value, expected="a power of two")
    for name in ("tile_m", "tile_n", "tile_k") if gemm else ():
        if getattr(schedule, name) < smallest:
            raise BadSchedule(f"triton: Schedule.{name}", got=getattr(schedule, name), expected=f"{smallest} or more")
    if schedule.split_k > 1:
        _check_slices(anatomy, problem, schedule, gemm)
    else:
        _check_split(anatomy, schedule, gemm)
    _check_size(anatomy, problem, schedule, arch, gemm)


def _check_split(anatomy: Tiling, schedule: Schedule, gemm: bool) -> None:
    part = schedule.tile_n // schedule.split
    if schedule.split > 1 and (not gemm or part < 16):
        raise BadSchedule(
            "triton: Schedule.split", got=schedule.split, expected="1" if not gemm else "parts of 16 columns or more"
        )
    if part < anatomy.unit:
        raise BadSchedule(
            "triton: a segment or a pair does not fit into a part of a tile",
            got=f"{part} columns",
            expected=f"{anatomy.unit} or more",
            hint="a larger tile_n, or a smaller split",
        )
    if schedule.split > 1 and anatomy.step(part) != part:
        raise BadSchedule("triton: segments that do not fill a part", got=f"split={schedule.split}", expected="split=1")


def _check_slices(anatomy: Tiling, problem: Problem, schedule: Schedule, gemm: bool) -> None:
    """What holds of a product whose K is cut, and of the epilogue that is a kernel of its own then."""
    what, got = "triton: Schedule.split_k", schedule.split_k
    if not gemm:
        raise BadSchedule(what, got=got, expected="1: a pointwise program has no product")
    if got > MOST_SLICES:
        raise BadSchedule(what, got=got, expected=f"at most {MOST_SLICES}")
    blocks = -(-problem.k // schedule.tile_k)
    if got > blocks:
        raise BadSchedule(
            f"{what}: a slice of K would be empty",
            got=f"{got} slices of {blocks} blocks (K = {problem.k}, tile_k = {schedule.tile_k})",
            expected=f"at most {max(1, blocks)}",
            hint="fewer slices, or a smaller tile_k",
        )
    for name, needed in (("persistent", False), ("split", 1)):
        if getattr(schedule, name) != needed:
            raise BadSchedule(
                f"triton: Schedule.{name} beside split_k={got}",
                got=getattr(schedule, name),
                expected=f"{needed}: one program per tile and slice, and an epilogue that has tiles of its own",
            )
    if slabs(problem, schedule) > MOST_SLABS:
        raise BadSchedule(
            f"{what}: the slices' partial products are too large",
            got=f"{slabs(problem, schedule) * 4} bytes",
            expected=f"at most {MOST_SLABS * 4}",
            hint="a product with so many tiles needs no slices",
        )
    _, columns, _ = epilogue_tile(anatomy, problem)
    if anatomy.unit > columns:
        raise BadSchedule(
            f"{what}: a segment is longer than any tile",
            got=f"{anatomy.unit} columns of acc",
            expected=f"at most {columns}",
        )


MOST_SLICES = 32
"""What an epilogue reads at a time: all of a number's slices."""
MOST_SLABS = 1 << 28
"""Numbers in all slabs together: 1 GiB. What wants slices has few tiles: 132 of the largest one are 16 MiB."""


def slabs(problem: Problem, schedule: Schedule) -> int:
    """Numbers of fp32 in the slabs: (M, whole tiles of columns) per slice of K, and what an epilogue's last tile reads beside
    the last row; none where K is not cut."""
    lead = -(-problem.n // schedule.tile_n) * schedule.tile_n
    return schedule.split_k * problem.m * lead + WIDEST_POINTWISE if schedule.split_k > 1 else 0


def _check_size(anatomy: Tiling, problem: Problem, schedule: Schedule, arch: str | None, gemm: bool) -> None:
    held = schedule.tile_m * schedule.tile_n // (32 * schedule.warps)
    if held > 512:
        raise BadSchedule(
            "triton: the tile does not fit into the registers",
            got=f"{held} numbers per thread",
            expected="at most 512",
            hint="a smaller tile or more warps",
        )
    if gemm and arch is not None:
        need, have = shared_memory(problem, schedule), limits(arch).shared
        if need > have:
            raise BadSchedule(
                "triton: the stages do not fit into shared memory",
                got=f"{need} bytes",
                expected=f"at most {have} on {arch}",
            )


def shared_memory(problem: Problem, schedule: Schedule) -> int:
    """Bytes of the pipeline's buffers: a lower bound of what the kernel takes."""
    return schedule.stages * schedule.tile_k * (schedule.tile_m + schedule.tile_n) * ITEM_BYTES[problem.dtype]


# choice -----------------------------------------------------------------------------------------------------------

# tile_m, tile_n, tile_k, warps, stages, what part of the largest tile's speed it reaches
_HOPPER = (
    (128, 256, 64, 8, 3, 1.0),
    (128, 128, 64, 8, 6, 0.83),
    (64, 128, 128, 4, 4, 0.51),
    (64, 64, 128, 4, 4, 0.26),
    (64, 32, 128, 4, 6, 0.154),
    (16, 32, 256, 4, 4, 0.04),
)
_AMPERE = (
    (128, 256, 32, 8, 3, 1.0),
    (128, 128, 32, 4, 4, 0.92),
    (64, 128, 32, 4, 4, 0.72),
    (64, 64, 64, 4, 4, 0.5),
    (32, 128, 32, 4, 4, 0.4),
    (16, 64, 64, 4, 4, 0.18),
)
_FP32 = ((64, 64, 16, 4, 2, 1.0), (32, 32, 16, 4, 2, 0.6), (16, 32, 16, 4, 2, 0.3))
WIDEST_GEMM, WIDEST_POINTWISE = 1024, 1024
"""Most columns of a tile: longer segments would not fit into registers."""


def default_schedule(program: EpilogueProgram, problem: Problem) -> Schedule:
    """The shipped heuristic. Raises `Unsupported` where a segment is longer than any tile."""
    anatomy = Tiling(program)
    widest = WIDEST_GEMM if program.kind == "epilogue" else WIDEST_POINTWISE
    if anatomy.unit > widest:
        raise Unsupported(
            "triton: a segment is longer than any tile",
            got=f"{anatomy.unit} columns of acc",
            expected=f"at most {widest}",
        )
    if program.kind == "pointwise":
        return _pointwise(anatomy, problem)
    if problem.arch is None:
        return _fit(anatomy, Schedule(tile_m=64, tile_n=64, tile_k=64, warps=4, stages=1, persistent=False))
    have = limits(problem.arch)
    sliced = _few_rows(program, problem, have)
    if sliced is not None:
        return sliced
    best = min(_rows(problem), key=lambda r: _time(r, problem, have, anatomy.unit))
    tile_m, tile_n, tile_k, warps, _, _ = best
    persistent = _by_descriptor(problem) and _tiles(best, problem) > have.sms
    stages = _stages(best, problem, persistent)
    schedule = Schedule(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, warps=warps, stages=stages, persistent=persistent)
    split = _split(anatomy, schedule)
    if split == 1 and tile_m * tile_n > 64 * 32 * warps and _weight(anatomy) >= LIGHT:  # it cannot be cut
        schedule = dataclasses.replace(schedule, tile_n=min(tile_n, 128), warps=8)
    return _fit(anatomy, dataclasses.replace(schedule, split=split))


Row = tuple[int, int, int, int, int, float]
BESIDE, ALONE = 144 << 10, 192 << 10
"""Bytes of the pipeline where the epilogue needs room beside it, and where it comes after it."""


def _rows(problem: Problem) -> list[Row]:
    """Rows of the table that fit, with fewer stages where shared memory is small."""
    table = _FP32 if problem.dtype == "float32" else _HOPPER if has_tma(problem.arch) else _AMPERE
    shared = limits(problem.arch).shared
    fitting = [(*r[:4], min(r[4], (shared - 32 * r[0] * 4) // _stage(r, problem)), r[5]) for r in table]
    return [r for r in fitting if r[4] > 1]


def _stage(row: Row, problem: Problem) -> int:
    """Bytes of one stage."""
    return row[2] * (row[0] + row[1]) * ITEM_BYTES[problem.dtype]


def _stages(row: Row, problem: Problem, persistent: bool) -> int:
    """Fewer where the epilogue's buffers lie beside the pipeline's, one more for the largest tile where they do not."""
    if persistent:
        return min(row[4], max(2, BESIDE // _stage(row, problem)))
    more = row[:2] == _HOPPER[0][:2] and has_tma(problem.arch)
    return row[4] + int(more and (row[4] + 1) * _stage(row, problem) <= ALONE <= limits(problem.arch).shared)


def _tiles(row: Row, problem: Problem) -> int:
    return -(-problem.m // row[0]) * -(-problem.n // row[1])


def _by_descriptor(problem: Problem) -> bool:
    """Whether A and B both come through descriptors: pointer loads are pipelined in a plain loop alone."""
    specs = dict(problem.tensors)
    return has_tma(problem.arch) and all(
        x not in specs or (specs[x].aligned and specs[x].layout != "any") for x in ("a", "b")
    )


def _time(row: Row, problem: Problem, have: Limits, unit: int) -> float:
    """Waves of tiles, each as long as its work at the tile's speed; small tiles that share an SM are one wave."""
    tile_m, tile_n, tile_k, _, stages, speed = row
    step = tile_n // unit * unit or 1
    tiles = -(-problem.m // tile_m) * -(-problem.n // step)
    beside = have.shared // (stages * tile_k * (tile_m + tile_n) * ITEM_BYTES[problem.dtype] + 2048)
    waves = max(1, -(-tiles // (have.sms * (max(1, min(2, beside)) if tile_m < 64 else 1))))
    return waves * tile_m * tile_n / speed * (1.0 if step > 1 else 1e6)


LIGHT, HEAVY = 1.2, 4.2


def _weight(anatomy: Tiling) -> float:
    """Matrices read and written, statistics and operations, in matrices: how many registers an epilogue needs per column."""
    return float(anatomy.traffic) + 0.5 * len(anatomy.statistics) + len(anatomy.in_tile) / 40


def _split(anatomy: Tiling, schedule: Schedule) -> int:
    """Parts of the accumulator: 128 columns each; 64 where tiles are read; 32 where much is, and twice as wide."""
    weight = _weight(anatomy)
    if weight < LIGHT and not anatomy.statistics:
        return 1
    columns = 128 if weight < HEAVY and not anatomy.reads else 32 if weight >= HEAVY and anatomy.max_width > 1 else 64
    split = max(1, schedule.tile_n // columns)
    while split > 1 and (
        schedule.tile_n // split < anatomy.unit or anatomy.step(schedule.tile_n // split) * split != schedule.tile_n
    ):
        split //= 2
    return split


def _fit(anatomy: Tiling, schedule: Schedule) -> Schedule:
    """Widen the tile until the longest segment fits, and shorten it by as much."""
    tile_m, tile_n, tile_k = schedule.tile_m, schedule.tile_n, schedule.tile_k
    while tile_n // schedule.split < anatomy.unit:
        tile_n *= 2
        tile_m = max(16, tile_m // 2)
        tile_k = max(16, tile_k // 2)
    if (tile_m, tile_n) == (schedule.tile_m, schedule.tile_n):
        return schedule
    return dataclasses.replace(
        schedule, tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, stages=min(schedule.stages, 2), warps=8
    )


def epilogue_tile(anatomy: Tiling, problem: Problem) -> tuple[int, int, int]:
    """Rows, columns (of width 1) and warps of the epilogue behind a product whose K is cut.

    It moves slabs out of L2, so that what counts is how many loads are under way: about four programs per multiprocessor, of
    1024 to 4096 numbers. One warp has 256 columns, and folds a row without the others; where columns are folded the tile is
    taller, so that the finisher finds fewer partials.
    """
    wanted = problem.m * problem.n // (4 * limits(problem.arch).sms)
    numbers = min(4096, max(1024, 1 << max(0, wanted.bit_length() - 1)))
    tile_n = 128 if any(s.axis == "col" for s in anatomy.statistics) else 256
    while tile_n > 16 and tile_n // 2 >= problem.n:
        tile_n //= 2
    while tile_n < anatomy.unit and tile_n < WIDEST_POINTWISE:
        tile_n *= 2
    tile_m = max(1, numbers // tile_n)
    if problem.arch is None:  # interpreted, program by program
        tile_m = max(tile_m, 32)
    return min(tile_m, 1 << max(0, problem.m - 1).bit_length()), tile_n, 4


def _pointwise(anatomy: Tiling, problem: Problem) -> Schedule:
    """About 2048 elements per tile: long rows; or 8192 in tall tiles where columns are reduced."""
    cols = any(s.axis == "col" for s in anatomy.statistics)
    tile_n = 128 if cols else 512 if anatomy.max_width > 1 else 1024
    while tile_n > 16 and tile_n // 2 >= problem.n:
        tile_n //= 2
    while tile_n < anatomy.unit:
        tile_n *= 2
    tile_m = max(1, (8192 if cols else 2048) // tile_n // (2 if anatomy.max_width > 1 else 1))
    if problem.arch is None:
        tile_m = max(tile_m, 32)
    tile_m = min(tile_m, 1024, 1 << max(0, problem.m - 1).bit_length())
    return Schedule(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=16,
        warps=4 if tile_m * tile_n <= 8192 else 8,
        stages=1,
        persistent=False,
        tma=False,
    )


SHORTEST_SLICE = 256
"""Of K: below it filling the pipeline takes as long as the slice."""
SLICED = (64, 128)
"""Rows and columns of the tiles that an untuned product has in slices."""
LONG_SLICE = 1024
"""Of K, in an untuned product: 2048 was measured, and a slice's slab costs as much however short it is."""


def _sliced(problem: Problem, have: Limits) -> list[Schedule]:
    """Schedules that cut K: of tiles that are not mostly empty, and so few that all slices of all of them run at a time. The
    most slices for which that holds and a slice is not too short, and half as many."""
    found = []
    for row in _rows(problem):
        tiles = _tiles(row, problem)
        if not tiles or row[0] >= 2 * problem.m or row[1] >= 2 * problem.n:
            continue
        most = min(have.sms // tiles, problem.k // SHORTEST_SLICE, MOST_SLICES)
        stages = _stages(row, problem, False)
        found += [
            Schedule("triton", *row[:4], stages, persistent=False, split_k=slices)
            for slices in dict.fromkeys((most, most // 2))
            if slices > 1
        ]
    return found


def _few_rows(program: EpilogueProgram, problem: Problem, have: Limits) -> Schedule | None:
    """For rows of two tiles: the most slices that run at a time, where the program can have them."""
    if not SLICED[0] < problem.m <= 2 * SLICED[0] or problem.dtype == "float32" or not has_tma(problem.arch):
        return None
    long = (s for s in _sliced(problem, have) if problem.k >= s.split_k * LONG_SLICE)
    return next(_valid(program, problem, (s for s in long if (s.tile_m, s.tile_n) == SLICED)), None)


def _valid(program: EpilogueProgram, problem: Problem, schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Those that a kernel can have."""
    for schedule in schedules:
        try:
            check(program, problem, schedule, problem.arch)
        except BadSchedule:
            continue
        yield schedule


def candidates(program: EpilogueProgram, problem: Problem) -> list[Schedule]:
    """Schedules worth measuring, the default first."""
    anatomy = Tiling(program)
    found = [default_schedule(program, problem)]
    if program.kind == "pointwise":
        base = found[0]
        found += [
            dataclasses.replace(base, tile_m=t, warps=w)
            for t in (base.tile_m, max(1, base.tile_m // 2), base.tile_m * 2, base.tile_m * 4)
            for w in (4, 8)
        ]
    elif problem.dtype != "float32":
        have = limits(problem.arch)
        times = {r: _time(r, problem, have, anatomy.unit) for r in _rows(problem)}
        for row in (r for r, time in times.items() if time <= 2 * min(times.values())):
            for persistent in (True, False) if _tiles(row, problem) > have.sms else (False,):
                stages = _stages(row, problem, persistent)
                base = Schedule("triton", *row[:4], stages, persistent=persistent)
                found += [dataclasses.replace(base, split=split) for split in (1, 2, 4, 8) if row[1] // split >= 32]
        found += _sliced(problem, have)
    return list(_valid(program, problem, dict.fromkeys(found)))
