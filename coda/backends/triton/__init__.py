"""The triton backend: programs as generated Triton kernels, on NVIDIA GPUs from sm_80 on or in Triton's interpreter.

    configs.py     schedules: which are possible, which one is the default
    tiling.py      what a program asks of tiles: how they may be cut, what they move
    epilogue.py    the text of a tile's epilogue
    product.py     the text of a product: the loop over K, and the kernel that computes slices of it
    template.py    the text of a module: GEMM and pointwise template, arguments of the kernels
    pieces.py      parts of tiles that generated kernels call: splitting, segments, shares in every statistic
    launch.py      cross-compilation, launches

What knows no template is in the room below, `coda.backends.finishing`: a program taken apart, operations and vectors as text,
the finisher, and what writes, imports and launches such texts.
Two launches at most: the tile kernel, and the finisher where a program returns vectors; one more before them where the schedule
cuts K into slices. The text of a kernel can be read in the cache folder or as `artifact.source`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coda import env
from coda.backends.finishing.modules import GENERATOR
from coda.backends.registry import Artifact, Support
from coda.backends.triton import configs
from coda.errors import BackendError, BackendUnavailable, Unsupported
from coda.problem import GEMM_DTYPES, Problem, Schedule
from coda.program import EpilogueProgram

if TYPE_CHECKING:
    from coda.backends.triton.launch import Runner


class TritonBackend:
    """Generated Triton kernels."""

    name = "triton"
    table = f"{GENERATOR}.{configs.TABLE}"

    def available(self) -> Support:
        """Triton, and a GPU of sm_80 or newer or an interpreting process."""
        try:
            import torch
            import triton  # noqa: F401
        except ImportError as error:
            return Support(False, f"{error.name} is not installed")
        if env.interpreting():
            return Support(True)
        if not torch.cuda.is_available():
            return Support(
                False,
                "no CUDA device; TRITON_INTERPRET=1, set before Triton is imported, runs small problems on the CPU",
            )
        major, minor = torch.cuda.get_device_capability()
        return Support(major >= 8, "" if major >= 8 else f"sm_{major}{minor} is older than sm_80")

    def supports(self, program: EpilogueProgram, problem: Problem) -> Support:
        """Everything but fp64, bf16 products on the CPU and segments longer than a tile."""
        try:
            self._check(program, problem, problem.arch)
            configs.default_schedule(program, problem)
        except BackendError as error:
            return Support(False, str(error))
        return Support(True)

    def default_schedule(self, program: EpilogueProgram, problem: Problem) -> Schedule:
        """See `configs`."""
        return configs.default_schedule(program, problem)

    def candidates(self, program: EpilogueProgram, problem: Problem) -> list[Schedule]:
        """Schedules worth measuring, the default first."""
        return configs.candidates(program, problem)

    def check(self, program: EpilogueProgram, problem: Problem, schedule: Schedule) -> None:
        """See `configs.check`."""
        configs.check(program, problem, schedule, problem.arch)

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        """See `registry.Backend`. Made ready for launch, a kernel is built when it is first launched."""
        target = arch if arch is not None else problem.arch
        self._check(program, problem, target)
        program.check_sizes(problem.n)
        configs.check(program, problem, schedule, target)
        interpreted = _interpreted()
        if arch is not None and interpreted:
            raise Unsupported(
                "triton cannot compile for a GPU in an interpreting process",
                got="TRITON_INTERPRET=1",
                expected="a process without it",
                hint="compile in a worker process",
            )
        from coda.backends.triton.launch import cross

        runner = _runner(program, problem, schedule, target, interpreted)
        if arch is None:
            return Artifact(self.name, program, problem, schedule, runner.generated.text, payload=runner)
        built = cross(runner, arch)
        return Artifact(
            self.name,
            program,
            problem,
            schedule,
            runner.generated.text,
            built.cubin,
            built.registers,
            built.spills,
            built.shared_memory,
            payload=runner,
        )

    def prepare(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """See `registry.Backend`."""
        artifact.payload.run(tensors, build_only=True)

    def launch(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """See `registry.Backend`."""
        artifact.payload.run(tensors)

    def straight(
        self, artifact: Artifact, tensors: Mapping[str, Any], names: Sequence[str]
    ) -> Callable[..., None] | None:
        """See `registry.Straight`."""
        runner: Runner = artifact.payload
        return runner.straight(tensors, names)

    @staticmethod
    def _check(program: EpilogueProgram, problem: Problem, arch: str | None) -> None:
        if problem.compute == "float64":
            raise Unsupported("triton computes in fp32", got=problem.dtype, hint='backend="reference" computes in fp64')
        configs.capability(arch)
        if program.kind == "epilogue":
            if problem.dtype not in GEMM_DTYPES:
                raise Unsupported("triton: dtype of a", got=problem.dtype, expected=", ".join(GEMM_DTYPES))
            specs = dict(problem.tensors)
            if "a" in specs and "b" in specs and specs["a"].dtype != specs["b"].dtype:
                raise Unsupported("triton multiplies equal dtypes", got=f"{specs['a'].dtype} and {specs['b'].dtype}")
            if problem.dtype == "bfloat16" and arch is None and env.interpreting():
                raise Unsupported(
                    "Triton's interpreter multiplies bf16 wrongly",
                    got="bfloat16 on a CPU",
                    expected="float32 or float16 there",
                )


def _interpreted() -> bool:
    """Whether kernels are interpreted here. Raises where the variable was set too late to be obeyed."""
    from coda.backends.finishing import maths

    if bool(maths.INTERPRETED.value) is not env.interpreting():
        raise BackendUnavailable(
            "TRITON_INTERPRET was changed after Triton was imported",
            got=f"TRITON_INTERPRET={'1' if env.interpreting() else 'unset'}",
            hint="set it before the process starts",
        )
    return env.interpreting()


@functools.lru_cache(maxsize=512)
def _runner(program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None, interpreted: bool) -> Any:
    from coda.backends.finishing.modules import module
    from coda.backends.triton.launch import Runner
    from coda.backends.triton.template import generate

    generated = generate(program, problem, schedule, arch, interpreted)
    return Runner(program, problem, schedule, generated, module(generated.text, program.name))


BACKEND = TritonBackend()
