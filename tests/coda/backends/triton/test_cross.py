"""Cross-compilation without a GPU, and what the backend says about programs and schedules before anything runs."""

from __future__ import annotations

from typing import Any

import pytest
import triton_programs as programs

from coda.errors import BackendError

pytestmark = pytest.mark.interp


def build(name: str, arch: str, dtype: str, schedule: dict[str, Any] | None) -> list[Any]:
    """Compile the default (or given) schedule; resources and size of the machine code."""
    p = programs.program(name)
    problem = programs.Problem.example(p, m=4096, n=4096, k=4096, dtype=dtype, arch=arch)
    chosen = programs.BACKEND.default_schedule(p, problem) if schedule is None else programs.Schedule(**schedule)
    artifact = programs.BACKEND.compile(p, problem, chosen, arch)
    assert artifact.cubin is not None
    return [artifact.registers, artifact.spills, artifact.shared_memory, len(artifact.cubin), artifact.source]


SMALL = {"tile_m": 64, "tile_n": 64, "tile_k": 32, "warps": 4, "stages": 2}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["swiglu_backward", "residual_rms", "cross_entropy"])
def test_every_architecture(cross: Any, name: str, arch: str) -> None:
    registers, spills, shared, size, source = cross(build, name, arch, "bfloat16", SMALL)
    assert 32 <= registers <= 255
    assert spills <= 64
    assert 0 < shared <= 99 << 10
    assert size > 1000
    assert ("a.load([" in source) is (arch != "sm_80")
    assert "def epilogue(" in source


def test_default_schedule_of_a_heavy_epilogue(cross: Any) -> None:
    registers, spills, shared, _, source = cross(build, "swiglu_backward", "sm_90", "bfloat16", None)
    assert 128 <= registers <= 255
    assert spills <= 64
    assert shared <= 227 << 10
    assert "split=8" in source
    assert "unpacked(" in source


def test_light_epilogue_does_not_spill(cross: Any) -> None:
    for name in ("plain", "residual_rms"):
        assert cross(build, name, "sm_90", "bfloat16", None)[1] == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_fp8_is_converted_by_the_hardware_where_it_can(cross: Any, arch: str) -> None:
    source = cross(build, "quantize", arch, "bfloat16", None)[4]
    assert ("tl.float8e4nv" in source) is (arch == "sm_90")
    assert ("encode_fp8" in source) is (arch == "sm_80")


def test_segments_vectors_and_fp32(cross: Any) -> None:
    assert cross(build, "segments", "sm_90", "float16", {**SMALL, "tile_n": 32})[0] > 0
    assert cross(build, "vectors", "sm_90", "float16", {**SMALL, "tile_n": 32})[0] > 0
    assert cross(build, "plain", "sm_90", "float32", {**SMALL, "tile_m": 16, "tile_n": 16, "tile_k": 16})[0] > 0


def refuse(name: str, changes: dict[str, Any]) -> str:
    p = programs.program(name)
    problem = programs.Problem.example(p, m=256, n=384, k=256, dtype="bfloat16", arch="sm_90")
    try:
        programs.BACKEND.compile(p, problem, programs.Schedule(**changes), "sm_90")
    except BackendError as error:
        return f"{error.code}: {error}"
    return "accepted"


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("plain", {"tile_n": 96}, "power of two"),
        ("plain", {"tile_k": 8}, "16 or more"),
        ("plain", {"split_k": 2}, "split_k"),
        ("plain", {"cluster_m": 2}, "cluster_m"),
        ("plain", {"pingpong": True}, "pingpong"),
        ("plain", {"backend": "cutedsl"}, "another backend"),
        ("plain", {"tile_n": 256, "stages": 7}, "shared memory"),
        ("plain", {"tile_m": 1024, "tile_n": 1024, "warps": 4, "tile_k": 16, "stages": 1}, "registers"),
        ("segments", {"tile_n": 16}, "does not fit into a part"),
        ("odd_segments", {"split": 2, "tile_n": 128}, "split=1"),
        ("rms_norm", {"split": 2}, "split"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_bad_schedules_are_refused_before_compiling(cross: Any, name: str, changes: dict[str, Any], says: str) -> None:
    message = cross(refuse, name, changes)
    assert message.startswith("schedule:")
    assert says in message


def cpu_launch() -> str:
    import torch

    p = programs.program("plain")
    bound = programs.inputs(p, 4, 4, 4, torch.float32, "cpu", 0)
    try:
        programs.run(p, bound, 4, 4, 4, programs.Schedule(tile_m=16, tile_n=16, tile_k=16, warps=4))
    except BackendError as error:
        return f"{error.code}: {error}"
    return "ran"


def test_cpu_tensor_outside_the_interpreter_names_the_variable(cross: Any) -> None:
    message = cross(cpu_launch)
    assert message.startswith("backend-unavailable:")
    assert "TRITON_INTERPRET=1" in message


def test_supports_says_why(cross: Any) -> None:
    long, fp64, odd = cross(reasons)
    assert "longer than any tile" in long
    assert "fp32" in fp64
    assert odd == "ok"


def reasons() -> list[str]:
    def segment_of(size: int) -> Any:
        def f(acc):
            return {"y": acc - programs.segment_max(acc, size)}

        return programs.trace(f, programs.signature(f, "epilogue"))

    def ask(p: Any, n: int, dtype: str) -> str:
        support = programs.BACKEND.supports(p, programs.Problem.example(p, m=64, n=n, k=64, dtype=dtype, arch="sm_90"))
        return "ok" if support.ok else support.reason

    return [
        ask(segment_of(4096), 4096, "bfloat16"),
        ask(segment_of(8), 64, "float64"),
        ask(segment_of(320), 3200, "bfloat16"),
    ]


def test_generation_is_deterministic_and_shared_by_sizes(cross: Any) -> None:
    assert cross(sources) == [True, True]


def sources() -> list[bool]:
    from coda.backends.triton.template import generate

    p = programs.program("norm_backward")
    schedule = programs.Schedule()
    texts = [
        generate(p, programs.Problem.example(p, m=m, n=4096, k=512, dtype="float16"), schedule, "sm_90", False).text
        for m in (1, 128, 5000)
    ]
    return [
        len(set(texts)) == 1,
        generate(
            programs.program("norm_backward"),
            programs.Problem.example(p, m=7, n=4096, k=512, dtype="float16"),
            schedule,
            "sm_90",
            False,
        ).text
        == texts[0],
    ]


def test_default_schedules_are_valid_everywhere() -> None:
    from coda.backends.triton import configs

    for name in programs.PROGRAMS:
        p = programs.program(name)
        for arch in configs.ARCHS:
            for dtype in ("bfloat16", "float32"):
                for m, n, k in (
                    (1, 4080, 4096),
                    (16, 14336, 4096),
                    (100, 96, 64),
                    (4096, 4128, 4096),
                    (65536, 768, 128),
                    (0, 96, 64),
                ):
                    n = n // 48 * 48 or 48
                    problem = programs.Problem.example(p, m=m, n=n, k=k, dtype=dtype, arch=arch)
                    configs.check(p, problem, configs.default_schedule(p, problem), arch)


def test_small_problems_get_small_tiles() -> None:
    from coda.backends.triton import configs

    p = programs.program("plain")
    tiles = [configs.default_schedule(p, programs.Problem.example(p, m=m, n=8192, k=8192)) for m in (1, 64, 256, 8192)]
    assert tiles[0].tile_m == 16
    assert tiles[1].tile_m == 64
    assert tiles[2].tile_m * tiles[2].tile_n <= 128 * 128
    assert tiles[3].tile_n == 256
    assert len(configs.candidates(p, programs.Problem.example(p))) > 5


def build_ones(name: str) -> int:
    p = programs.program(name)
    problem = programs.Problem.example(p, m=1, n=1, k=1, dtype="float16", arch="sm_90")
    schedule = programs.Schedule(tile_m=16, tile_n=16, tile_k=16, warps=4)
    return len(programs.BACKEND.compile(p, problem, schedule, "sm_90").cubin or b"")


@pytest.mark.parametrize("name", ["cross_entropy", "norm_backward"])
def test_sizes_of_one_are_compiled_in(cross: Any, name: str) -> None:
    assert cross(build_ones, name) > 1000
