"""A backend for tests of the tuner: the reference's results on a CPU, and candidates that misbehave as their `tile_m` says."""

from __future__ import annotations

import os
import signal
import time

from coda.backends.reference import Reference
from coda.backends.registry import Artifact, Support
from coda.errors import BadSchedule, CompileError
from coda.problem import Schedule

SLOW, FAST, RAISES, WRONG, HANGS, DIES, REFUSED, HANGS_BUILDING, HANGS_TIMED, UNWRITTEN = range(16, 176, 16)
INVALID = 1000


def schedule(kind: int) -> Schedule:
    return Schedule(backend="fake", tile_m=kind)


class Fake(Reference):
    name = "fake"
    table = "7"
    offered = (FAST, RAISES, WRONG, HANGS, DIES, REFUSED, HANGS_BUILDING, HANGS_TIMED, UNWRITTEN)
    launches = 0

    def available(self):
        return Support(True)

    def default_schedule(self, program, problem):
        return schedule(SLOW)

    def candidates(self, program, problem):
        wanted = os.environ.get("FAKE_OFFERS")
        return [schedule(SLOW), *(schedule(int(k)) for k in (wanted.split(",") if wanted else self.offered))]

    def check(self, program, problem, schedule):
        if schedule.tile_m == INVALID:
            raise BadSchedule("fake: no such tile", got=schedule.tile_m)

    def compile(self, program, problem, schedule, arch):
        if schedule.tile_m == REFUSED:
            raise CompileError("fake: does not fit", got="9 of registers")
        if schedule.tile_m == HANGS_BUILDING:
            time.sleep(3600)
        return Artifact(self.name, program, problem, schedule, source="", registers=32, spills=0, shared_memory=1024)

    def launch(self, artifact, tensors):
        kind = artifact.schedule.tile_m
        if kind == RAISES:
            raise RuntimeError("fake: no luck")
        if kind == HANGS:
            time.sleep(3600)
        if kind == DIES:
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == HANGS_TIMED:
            self.launches += 1
            if self.launches > 2:
                time.sleep(3600)
        if kind == SLOW:
            time.sleep(0.04)
        if kind == UNWRITTEN:
            return
        super().launch(artifact, tensors)
        if kind == WRONG:
            for name, x in tensors.items():
                if name.startswith("out."):
                    x.mul_(1.25)


BACKEND = Fake()
