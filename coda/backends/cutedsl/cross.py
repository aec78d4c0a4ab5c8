"""Compile for a GPU that is not here, in a process of its own, and read what the machine code takes.

    build       program, problem, schedule, arch -> Built; starts `python -m coda.backends.cutedsl.cross`
    resources   registers and local memory of the kernel in an object file

The compiler reads its target from the environment and its failures may end the process, hence the child: it gets a fresh
cache folder, plans, and leaves an object file there. Without a driver planning fails after that file is written, where
it counts the clusters that fit the device; the file is what tells success.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from coda import env, files
from coda.backends.cutedsl import configs
from coda.errors import BadSchedule, CompileError
from coda.problem import Problem, Schedule, TensorSpec
from coda.program import EpilogueProgram

SECONDS = 300.0
"""How long one kernel may take; precise sines on a busy machine need half a minute."""


@dataclass(frozen=True)
class Built:
    """Machine code of the GEMM kernel and what it takes."""

    cubin: bytes
    registers: int
    local_memory: int
    shared_memory: int | None
    source: str
    stages: tuple[int, ...]
    """Hopper: A/B, store and load stages; Blackwell: as its mainloop counts them."""


def build(program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str, seconds: float = SECONDS) -> Built:
    """Raises `CompileError` or `BadSchedule`."""
    generation = configs.family(arch)
    with tempfile.TemporaryDirectory(prefix="coda-cutedsl-") as folder:
        request = pathlib.Path(folder) / "request.json"
        request.write_text(json.dumps(_request(program, problem, schedule, arch)), encoding="utf-8")
        environment = env.of_child(
            QUACK_ARCH=str(generation),
            CUTE_DSL_ARCH=configs.target(arch),
            QUACK_CACHE_DIR=str(pathlib.Path(folder) / "objects"),
            QUACK_CACHE_ENABLED="1",
            PYTHONPATH=os.pathsep.join(p for p in sys.path if p),
        )
        output = _child(
            [sys.executable, "-m", "coda.backends.cutedsl.cross", folder], environment, seconds, program.name
        )
        answer = pathlib.Path(folder) / "answer.json"
        objects = list((pathlib.Path(folder) / "objects").rglob("*.o"))
        if not answer.is_file():
            raise CompileError(f"{program.name}: the compiler's process ended early", got=output[-2000:])
        found = json.loads(answer.read_text(encoding="utf-8"))
        if found["error"] and not objects:
            cls = BadSchedule if found["class"] == "BadSchedule" else CompileError
            raise cls(f"{program.name}: compiling for {arch} failed", got=found["error"][-2000:])
        cubin, registers, local = resources(objects[0].read_bytes())
    stages = tuple(found["stages"])
    if generation == 90 and stages and stages[0] < 2:
        raise BadSchedule(
            f"{program.name}: this tile leaves room for {stages[0]} stages of A and B", expected="at least 2"
        )
    return Built(cubin, registers, local, found["shared_memory"], found["source"], stages)


def _child(command: list[str], environment: dict[str, str], seconds: float, name: str) -> str:
    """What the child printed. It is ended with everything that it started."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CompileError(f"{name}: compiling took too long", got=f"more than {seconds:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return output


def _request(program: EpilogueProgram, problem: Problem, schedule: Schedule, arch: str) -> dict[str, Any]:
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype, "arch": problem.arch}
    tensors = {name: asdict(spec) for name, spec in problem.tensors}
    return {
        "program": program.to_json(),
        "problem": sizes,
        "tensors": tensors,
        "schedule": schedule.to_dict(),
        "arch": arch,
    }


def main(folder: str) -> None:
    """The child: plan once, write down what happened."""
    import torch

    from coda.backends.cutedsl.launch import Runner
    from coda.backends.cutedsl.private import recorded

    request = json.loads((pathlib.Path(folder) / "request.json").read_text(encoding="utf-8"))
    program = EpilogueProgram.from_json(request["program"])
    tensors = tuple(sorted((name, TensorSpec(**spec)) for name, spec in request["tensors"].items()))
    problem = Problem(tensors=tensors, **request["problem"])
    answer: dict[str, Any] = {"error": "", "class": "", "source": ""}
    with recorded() as (stages, shared):
        try:
            runner = Runner(program, problem, Schedule.from_dict(request["schedule"]), request["arch"])
            answer["source"] = runner.lowered.source
            runner.prepare(torch.device("cpu"))
        except Exception as error:
            answer |= {"error": str(error), "class": type(error).__name__}
    answer |= {"stages": list(stages[-1]) if stages else [], "shared_memory": max(shared, default=None)}
    files.write(pathlib.Path(folder) / "answer.json", json.dumps(answer))


# machine code -------------------------------------------------------------------------------------------------------

_CUDA = 190
_REGISTERS, _FRAME = 0x2F, 0x11


def resources(data: bytes) -> tuple[bytes, int, int]:
    """(machine code, registers, bytes of local memory per thread) of the one kernel in an object file.

    The sections `.nv.info` list per kernel, among much else, how many registers it takes and how large its frame is.
    """
    for at in _elves(data):
        if struct.unpack_from("<H", data, at + 18)[0] != _CUDA:
            continue
        (table,) = struct.unpack_from("<Q", data, at + 0x28)
        size, count, names_at = struct.unpack_from("<HHH", data, at + 0x3A)
        (programs,) = struct.unpack_from("<Q", data, at + 0x20)
        program_size, program_count = struct.unpack_from("<HH", data, at + 0x36)
        sections = [struct.unpack_from("<IIQQQQIIQQ", data, at + table + i * size) for i in range(count)]
        end = max(table + count * size, programs + program_size * program_count)
        found = {_REGISTERS: 0, _FRAME: 0}
        for section in sections:
            name_at = at + sections[names_at][4] + section[0]
            if data[name_at : data.index(b"\0", name_at)] == b".nv.info":
                for attribute, value in _attributes(data[at + section[4] : at + section[4] + section[5]]):
                    if attribute in found:
                        found[attribute] = max(found[attribute], value)
        return data[at : at + end], found[_REGISTERS], found[_FRAME]
    raise CompileError("the object file holds no machine code for a GPU", got=f"{len(data)} bytes")


def _elves(data: bytes) -> Iterator[int]:
    at = data.find(b"\x7fELF")
    while at >= 0:
        yield at
        at = data.find(b"\x7fELF", at + 4)


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    """(attribute, second word) of entries that hold a symbol and a number."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        if form != 4:
            at += 4
            continue
        if length == 8:
            yield attribute, struct.unpack_from("<II", info, at + 4)[1]
        at += 4 + length


if __name__ == "__main__":
    main(sys.argv[1])
