"""A product whose K is cut into slices: in the interpreter, cross-compiled, and what is said of such schedules.

The same checks on a GPU, with graphs and streams, are in `test_gpu.py`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import triton_programs as programs

from coda.errors import BackendError

pytestmark = pytest.mark.interp

EPILOGUES = [name for name, case in programs.PROGRAMS.items() if case.kind == "epilogue"]
SMALL = {"tile_m": 32, "tile_n": 64, "tile_k": 16, "warps": 4, "persistent": False}


def sliced(slices: int, **changes: Any) -> dict[str, Any]:
    return {**SMALL, "split_k": slices, **changes}


# in the interpreter ---------------------------------------------------------------------------------------------------


def check_all(name: str, m: int, n: int, k: int, dtype: str, slices: list[int]) -> None:
    for count in slices:
        programs.check(name, m, n, k, dtype, sliced(count))


@pytest.mark.parametrize("shape", [(19, 70, 130), (1, 1, 128), (0, 20, 128), (20, 0, 128)], ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_programs_on_ragged_and_empty_shapes(interp: Any, name: str, shape: tuple[int, int, int]) -> None:
    """130 columns of A are nine blocks of 16, the last one ragged: no number of slices but 3 divides them."""
    interp(check_all, name, *shape, "float32", [2, 3, 4, 8] if shape[0] == 19 else [2])


@pytest.mark.parametrize("name", ["swiglu_backward", "residual_rms", "cross_entropy", "norm_backward", "odd_segments"])
def test_several_tiles_of_the_epilogue(interp: Any, name: str) -> None:
    interp(check_all, name, 40, 300, 50, "float32", [3])


@pytest.mark.parametrize("name", ["swiglu_backward", "cross_entropy", "reductions", "segments", "vectors"])
def test_fp16(interp: Any, name: str) -> None:
    interp(check_all, name, 17, 96, 130, "float16", [2, 8])


@pytest.mark.parametrize(
    "change",
    [{"tma": False}, {"tile_m": 64, "tile_n": 16, "group_m": 2}, {"tile_n": 256, "tile_m": 32, "tile_k": 32}],
    ids=str,
)
def test_schedules_agree(interp: Any, change: dict[str, Any]) -> None:
    interp(check_change, "reductions", change)


def check_change(name: str, change: dict[str, Any]) -> None:
    programs.check(name, 40, 150, 90, "float32", sliced(3, **change))


def test_every_number_that_is_read_was_written(interp: Any) -> None:
    interp(check_poisoned)


def check_poisoned() -> None:
    """Slabs and partials are full of NaN before each launch, and nothing beyond the outputs is written."""
    empty = torch.empty_strided

    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        return empty(*args, **kwargs).fill_(math.nan)

    torch.empty_strided = poisoned
    try:
        for name in ("swiglu", "cross_entropy", "norm_backward"):
            p, m, n, k = programs.program(name), 19, 70, 100
            bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 3)
            before = {x: t.clone() for x, t in bound.items() if isinstance(t, torch.Tensor)}
            out, guards = programs.outputs(p, m, n, torch.float32, "cpu"), {}
            for x, t in list(out.items()):
                guards[x] = torch.full((t.numel() + 64,), 7.0)
                out[x] = guards[x][32:-32].view(t.shape)
            got = programs.run(p, bound, m, n, k, programs.Schedule(**sliced(4)), out)
            programs.compare(p, bound, got, m, n)
            assert all((g[:32] == 7).all() and (g[-32:] == 7).all() for g in guards.values())
            assert all(torch.equal(bound[x], t) for x, t in before.items())
    finally:
        torch.empty_strided = empty


@pytest.mark.parametrize("case", [("residual_rms", "residual", "h"), ("swiglu_backward", "z", "dz")], ids=str)
def test_output_may_be_a_tile_operand(interp: Any, case: tuple[str, str, str]) -> None:
    interp(check_alias, *case)


def check_alias(name: str, operand: str, output: str) -> None:
    p, m, n, k = programs.program(name), 50, 300, 64
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 6)
    schedule = programs.Schedule(**sliced(2))
    want = programs.run(p, bound, m, n, k, schedule)
    out = programs.outputs(p, m, n, torch.float32, "cpu")
    out[f"out.{output}"] = bound[operand]
    got = programs.run(p, bound, m, n, k, schedule, out)
    assert all(torch.equal(got[x], want[x]) for x in want)


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset"])
def test_layouts(interp: Any, layout: str) -> None:
    interp(check_layout, layout)


def check_layout(layout: str) -> None:
    p, m, n, k = programs.program("norm_backward"), 21, 36, 90
    bound = programs.inputs(p, m, n, k, torch.float32, "cpu", 2)
    for name in ("a", "b", "x"):
        x = bound[name]
        if layout == "transposed":
            bound[name] = x.T.contiguous().T
        elif layout == "strided":
            bound[name] = torch.stack([x, torch.full_like(x, math.nan)], -1).flatten(1)[:, ::2]
        else:
            buffer = torch.full((x.numel() + 3,), math.nan)
            buffer[3:] = x.reshape(-1)
            bound[name] = buffer[3:].view(x.shape)
    programs.compare(p, bound, programs.run(p, bound, m, n, k, programs.Schedule(**sliced(3))), m, n)


def test_slices_are_summed_in_their_order(interp: Any) -> None:
    interp(check_order)


def check_order() -> None:
    """Sums that depend on the order: 2^30, 1, -2^30 in three slices are 0 from the left, 1 from the right."""
    p, m, n, k = programs.program("plain"), 16, 16, 48
    a, b = torch.zeros(m, k), torch.zeros(k, n)
    a[:, 0], a[:, 16], a[:, 32] = 2.0**30, 1.0, -(2.0**30)
    b[0], b[16], b[32] = 1.0, 1.0, 1.0
    schedule = programs.Schedule(**sliced(3, tile_n=16))
    assert (programs.run(p, {"a": a, "b": b}, m, n, k, schedule)["y"] == 0).all()
    a[:, 16], a[:, 32] = -(2.0**30), 1.0
    assert (programs.run(p, {"a": a, "b": b}, m, n, k, schedule)["y"] == 1).all()


def test_blocks_of_k_are_dealt_evenly(interp: Any) -> None:
    assert interp(dealt, 9, 4) == [[0, 3], [3, 5], [5, 7], [7, 9]]
    assert interp(dealt, 8, 8) == [[i, i + 1] for i in range(8)]


def dealt(blocks: int, slices: int) -> list[list[int]]:
    import triton
    import triton.language as tl

    from coda.backends.triton import pieces

    globals()["slice_of"] = pieces.slice_of  # where the interpreter looks for it

    @triton.jit
    def kernel(out, blocks, SLICES: tl.constexpr):
        first, last = slice_of(tl.program_id(0), blocks, SLICES)  # noqa: F821
        tl.store(out + tl.program_id(0) * 2, first)
        tl.store(out + tl.program_id(0) * 2 + 1, last)

    out = torch.zeros(slices, 2, dtype=torch.int32)
    kernel[(slices,)](out, blocks, slices)
    return out.tolist()  # type: ignore[no-any-return]


# cross-compiled -------------------------------------------------------------------------------------------------------


def build(name: str, arch: str, dtype: str, schedule: dict[str, Any], m: int = 128) -> list[Any]:
    p = programs.program(name)
    problem = programs.Problem.example(p, m=m, n=4096, k=4096, dtype=dtype, arch=arch.removesuffix("a"))
    artifact = programs.BACKEND.compile(p, problem, programs.Schedule(**schedule), arch)
    assert artifact.cubin is not None
    return [artifact.registers, artifact.spills, artifact.shared_memory, len(artifact.cubin), artifact.source]


LARGE = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "warps": 8, "stages": 4, "persistent": False, "split_k": 8}


@pytest.mark.parametrize("name", ["plain", "swiglu", "residual_rms", "swiglu_backward", "norm_backward", "segments"])
def test_hopper_neither_spills_nor_overruns(cross: Any, name: str) -> None:
    registers, spills, shared, size, source = cross(build, name, "sm_90a", "bfloat16", LARGE)
    assert 64 <= registers <= 255
    assert spills == 0
    assert 128 << 10 < shared <= 227 << 10
    assert size > 1000
    assert "split_k=8" in source
    product, tile = (
        source[source.index("def product_kernel") : source.index("def tile_kernel")],
        source[source.index("def tile_kernel") :],
    )
    assert "a.load([" in product
    assert "gdc_launch_dependents()" in product
    assert "tl.dot" not in tile
    assert "gdc_wait()" in tile
    assert "atomic" not in source


def test_matrices_are_read_before_the_product_is_waited_for(cross: Any) -> None:
    source = cross(build, "residual_rms", "sm_90a", "bfloat16", LARGE)[4]
    tile = source[source.index("def tile_kernel") :]
    assert tile.index("= inputs(") < tile.index("gdc_wait()") < tile.index("summed(") < tile.index("epilogue(")


def test_older_gpus_launch_one_after_the_other(cross: Any) -> None:
    small = {"tile_m": 64, "tile_n": 64, "tile_k": 32, "warps": 4, "stages": 2, "persistent": False, "split_k": 3}
    registers, spills, _, _, source = cross(build, "swiglu_backward", "sm_80", "float16", small)
    assert registers <= 255
    assert spills <= 64
    assert "gdc_" not in source


def refuse(name: str, changes: dict[str, Any], k: int) -> str:
    p = programs.program(name)
    problem = programs.Problem.example(p, m=256, n=384, k=k, dtype="bfloat16", arch="sm_90")
    try:
        programs.BACKEND.compile(p, problem, programs.Schedule(**changes), "sm_90")
    except BackendError as error:
        return f"{error.code}: {error}"
    return "accepted"


@pytest.mark.parametrize(
    ("name", "changes", "k", "says"),
    [
        ("plain", {"split_k": 8, "persistent": False}, 256, "8 slices of 4 blocks (K = 256, tile_k = 64)"),
        ("plain", {"split_k": 2, "persistent": False}, 0, "0 blocks"),
        ("plain", {"split_k": 2}, 256, "persistent beside split_k=2"),
        ("plain", {"split_k": 2, "persistent": False, "split": 2}, 256, "split beside split_k=2"),
        ("plain", {"split_k": 64, "tile_k": 16, "persistent": False}, 4096, "at most 32"),
        ("rms_norm", {"split_k": 2, "persistent": False}, 256, "a pointwise program has no product"),
        ("plain", {"split_k": 2, "persistent": False, "tile_n": 256, "stages": 7}, 1024, "shared memory"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_bad_schedules_are_refused_before_compiling(
    cross: Any, name: str, changes: dict[str, Any], k: int, says: str
) -> None:
    message = cross(refuse, name, changes, k)
    assert message.startswith("schedule:")
    assert says in message


# which of them are tried ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "swiglu_backward", "odd_segments", "norm_backward"])
@pytest.mark.parametrize("m", [64, 128, 256, 512, 1024, 4096])
def test_candidates_fill_the_gpu_once_and_no_more(name: str, m: int) -> None:
    from coda.backends.triton import configs

    p = programs.program(name)
    problem = programs.Problem.example(p, m=m, n=4080 if name == "odd_segments" else 4096, k=4096)
    found = [c for c in configs.candidates(p, problem) if c.split_k > 1]
    assert bool(found) is (m <= 512)
    for c in found:
        tiles = -(-problem.m // c.tile_m) * -(-problem.n // c.tile_n)
        assert tiles * c.split_k <= 132
        assert problem.k // c.split_k >= configs.SHORTEST_SLICE
        assert c.tile_m < 2 * m


@pytest.mark.parametrize(
    ("m", "n", "k", "slices"),
    [
        (128, 4096, 4096, 2),
        (65, 4096, 4096, 2),
        (128, 1024, 4096, 4),
        (128, 4096, 2048, 2),
        (128, 4096, 1024, 1),
        (128, 8192, 8192, 1),
        (256, 4096, 4096, 1),
        (4096, 4096, 4096, 1),
        (64, 4096, 4096, 1),
        (16, 4096, 4096, 1),
    ],
)
def test_an_untuned_product_is_cut_where_that_was_measured_to_win(m: int, n: int, k: int, slices: int) -> None:
    from coda.backends.triton import configs

    p = programs.program("plain")
    problem = programs.Problem.example(p, m=m, n=n, k=k)
    schedule = configs.default_schedule(p, problem)
    assert schedule.split_k == slices
    configs.check(p, problem, schedule, problem.arch)
    assert configs.default_schedule(p, dataclasses.replace(problem, arch="sm_80")).split_k == 1


def test_short_products_are_not_cut() -> None:
    from coda.backends.triton import configs

    p = programs.program("plain")
    for k in (64, 256, 500):
        assert all(c.split_k == 1 for c in configs.candidates(p, programs.Problem.example(p, m=128, n=512, k=k)))
    assert any(c.split_k == 2 for c in configs.candidates(p, programs.Problem.example(p, m=128, n=512, k=512)))


def test_epilogues_are_spread_over_the_gpu() -> None:
    from coda.backends.triton import configs
    from coda.backends.triton.tiling import Tiling

    for name in EPILOGUES:
        anatomy = Tiling(programs.program(name))
        for m, n in ((1, 48), (128, 4128), (512, 4128), (4096, 4128), (65536, 96)):
            rows, columns, warps = configs.epilogue_tile(
                anatomy, programs.Problem.example(programs.program(name), m=m, n=n)
            )
            assert columns >= anatomy.unit
            assert rows * columns <= max(4096, 4 * 1024)
            assert rows < 2 * m
            assert warps == 4
            if m in (128, 512) and n == 4128:
                assert -(-m // rows) * -(-n // anatomy.step(columns)) >= 3 * 132


def test_launches_are_product_tiles_finisher(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one workspace, the later two while the one before runs; built are the same three with the same arguments."""
    from coda.tuning import tensors as synthetic

    p = programs.program("residual_rms")
    problem = programs.Problem.example(p, m=64, n=256, k=512)
    schedule = programs.Schedule(tile_m=64, tile_n=64, persistent=False, split_k=3)
    runner = programs.BACKEND.compile(p, problem, schedule, None).payload
    device = torch.device("cpu")
    tensors = synthetic.draw(p, problem, device, 1) | synthetic.results(p, problem, device)
    seen: list[Any] = []

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **options: seen.append((self.name, grid, args, options))

        def warmup(self, *args: Any, grid: Any, **options: Any) -> None:
            seen.append((self.name, grid, args, options))

    for name in ("_product", "_kernel", "_finisher"):
        step = getattr(runner, name)
        monkeypatch.setattr(step, "_function", Kernel(name))
        monkeypatch.setattr(step, "_direct", False)
    for run in (runner._build, runner._launch):
        seen.clear()
        run(tensors, device)
        assert [name for name, *_ in seen] == ["_product", "_kernel", "_finisher"]
        (_, product, args, how), (_, tiles, others, then), (_, _, last, end) = seen
        assert product == (1 * 4 * 3,)
        assert tiles == (runner.sizes["tiles_m"] * runner.sizes["tiles_n"],)
        assert not how.get("launch_pdl")
        assert then["launch_pdl"] is end["launch_pdl"] is True
        buffers = [{x.data_ptr() for x in given if _workspace(x, runner)} for given in (args, others, last)]
        assert buffers[0] == buffers[1] == buffers[2]
        assert len(buffers[0]) == 1
        at = runner.sizes["slabs_at"]
        assert at % 32 == 0
        assert at >= runner.sizes["tiles_n"] * 64  # one plane of partials
        assert runner.workspace == at + 3 * 64 * 256 + 1024  # whose last row may be read beyond


def _workspace(x: Any, runner: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim == 1 and x.numel() == runner.workspace
