"""The CuTeDSL backend: programs on quack-kernels' fixed mainloop and epilogue operators, on Hopper and Blackwell.

    lowering.py      program -> one function of an element (or pair), its operands, stores and statistics
    lowered.py       what that is: plain data
    values.py        nodes as lines of the function
    segments.py      reductions of groups of columns, folded by a function that runs before it
    expressions.py   elementwise operation -> expression
    integers.py      integers in 32 bits, proved
    support.py       every reason why a program cannot be run here
    configs.py       schedules: what is valid, what fits, the shipped choice
    maths.py         device code: the functions of one element
    operators.py     device code: our own loaders and statistics
    moments.py       device code: the statistic of two numbers per row
    private.py       every private API of quack and CUTLASS, with the reason
    launch.py        plans and launches
    finish.py        the finishing kernel: where partials lie, and what is different from the shared one
    cross.py         compiling for a GPU that is not here, and reading the machine code

A program is taken apart, and the finisher written and launched, by the room below, `coda.backends.finishing`.
There is no mainloop here: what quack's front end and our operators cannot express is a reason in `supports`, and goes
to another backend. Importing this module imports neither quack nor CUTLASS, but fails where they are not installed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from coda.backends.cutedsl import configs, support
from coda.backends.registry import Artifact, Support
from coda.errors import BackendUnavailable, Unsupported
from coda.problem import Problem, Schedule
from coda.program import EpilogueProgram

if TYPE_CHECKING:
    from coda.backends.cutedsl.launch import Runner

for _package, _distribution in (("quack", "quack-kernels"), ("cutlass", "nvidia-cutlass-dsl")):
    if importlib.util.find_spec(_package) is None:
        raise ImportError(f"{_distribution} is not installed")


class CuteDsl:
    """Implements `coda.backends.registry.Backend`."""

    name = "cutedsl"
    table = configs.TABLE

    def available(self) -> Support:
        """Whether the pinned packages and a GPU of a known generation are here."""
        import torch

        wrong = configs.versions_wrong()
        if wrong:
            return Support(False, wrong)
        if not torch.cuda.is_available():
            return Support(False, "no CUDA device")
        major, minor = torch.cuda.get_device_capability()
        try:
            configs.family(f"sm_{major}{minor}")
        except Unsupported as error:
            return Support(False, str(error))
        return Support(True)

    def supports(self, program: EpilogueProgram, problem: Problem) -> Support:
        """See `support.py`."""
        return support.supports(program, problem)

    def default_schedule(self, program: EpilogueProgram, problem: Problem) -> Schedule:
        """See `configs.default`."""
        return configs.default(program, problem)

    def candidates(self, program: EpilogueProgram, problem: Problem) -> list[Schedule]:
        """See `configs.candidates`."""
        return configs.candidates(program, problem)

    def check(self, program: EpilogueProgram, problem: Problem, schedule: Schedule) -> None:
        """See `configs.valid`."""
        configs.valid(schedule, program, problem)

    def compile(self, program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str | None) -> Artifact:
        """With `arch` in a process of its own, reporting resources; with None here, for this process's GPU."""
        meant = dataclasses.replace(problem, arch=arch or problem.arch)
        answer = self.supports(program, meant)
        if not answer.ok:
            raise Unsupported(f"cutedsl cannot run {program.name}: {answer.reason}", hint='backend="triton" may')
        wrong = configs.versions_wrong()
        if wrong:
            raise BackendUnavailable(wrong)
        if arch is None:
            runner = _runner(program, problem, schedule)
            text = runner.lowered.source + (f"\n\n{runner.finisher.text}" if runner.finisher else "")
            return Artifact(self.name, program, problem, schedule, text, payload=runner)
        return _cross(program, meant, schedule, arch)

    def prepare(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """`compile` has built the GEMM, which quack keeps on disk; the finisher is Triton's."""
        artifact.payload.build_finisher(tensors)

    def launch(self, artifact: Artifact, tensors: Mapping[str, Any]) -> None:
        """See `registry.Backend`."""
        artifact.payload.run(tensors)

    def straight(
        self, artifact: Artifact, tensors: Mapping[str, Any], names: Sequence[str]
    ) -> Callable[..., None] | None:
        """See `registry.Straight`."""
        runner: Runner = artifact.payload
        return runner.straight(tensors, names)


@functools.lru_cache(maxsize=1024)
def _runner(program: EpilogueProgram, problem: Problem, schedule: Schedule) -> Any:
    import torch

    from coda.backends.cutedsl.launch import Runner

    if not torch.cuda.is_available():
        raise BackendUnavailable(
            "cutedsl runs on a GPU", got="no CUDA device", hint="compile(…, arch='sm_90') builds without one"
        )
    runner = Runner(program, problem, schedule, problem.arch or "")
    runner.prepare(torch.device("cuda", torch.cuda.current_device()))
    return runner


def _cross(program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str) -> Artifact:
    from coda.backends.cutedsl import cross, finish, lowering

    generation = configs.family(arch)
    lowered = lowering.lower(program, problem, schedule.tile_m, schedule.tile_n, "", packed=generation == 100)
    configs.check(schedule, lowered, generation)
    if generation == 90:
        configs.check_stages(schedule, lowered, problem)
    built = cross.build(program, problem, schedule, arch)
    text = built.source
    if finish.has_finisher(program):
        text += f"\n\n{finish.text_of(program, problem, schedule.tile_n, overlapped=True)[0]}"
    return Artifact(
        BACKEND.name,
        program,
        problem,
        schedule,
        text,
        built.cubin,
        built.registers,
        built.local_memory,
        built.shared_memory,
        payload=built,
    )


BACKEND = CuteDsl()
