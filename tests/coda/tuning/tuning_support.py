"""What tests of the tuner share: the fake backend where children find it, a program, a job, an entry."""

from __future__ import annotations

import pathlib

import fake_backend
from fake_backend import FAST, SLOW, schedule

import coda
from coda.backends import registry
from coda.primitives import Tile
from coda.problem import Problem
from coda.schedules import Candidate, Entry, Key
from coda.tuning import child
from coda.tuning.crew import Answer
from coda.tuning.jobs import Job

HERE = pathlib.Path(__file__).parent


@coda.epilogue
def plus(acc, x: Tile):
    return {"y": acc + x}


class Here:
    """In place of `Crew`: the steps in this process, for tests of what the tuner makes of the answers."""

    def __init__(self, builders):
        self.waiting = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def submit(self, request, seconds, done):
        self.waiting.append((request, done))

    def drop(self):
        self.waiting.clear()

    def pump(self, seconds):
        while self.waiting:
            request, done = self.waiting.pop(0)
            done(self.ask(request, seconds))

    def ask(self, request, seconds):
        told = child._answer(request)
        if "value" in told:
            return Answer("value", 0.01, told["value"])
        return Answer("error", 0.01, code=told["code"], reason=told["reason"], lost=told["sticky"])


class Scripted(Here):
    """Answers of the racing process as a test wants them: `script(step, request, at)` gives the at-th answer of a step, or None
    for the real one."""

    script = staticmethod(lambda step, request, at: None)

    def __init__(self, builders):
        super().__init__(builders)
        self.asked = []

    def ask(self, request, seconds):
        step = request["step"]
        self.asked.append(step)
        told = type(self).script(step, request, self.asked.count(step))
        return super().ask(request, seconds) if told is None else told


def problem(arch=None, m=48, **more):
    return Problem.example(plus.program, m=m, n=32, k=16, dtype="float32", arch=arch, **more)


def job(**more):
    return Job(plus.program, problem(**more))


def register(monkeypatch):
    registry.get.cache_clear()
    monkeypatch.setitem(registry.MODULES, "fake", "fake_backend")


def entry(key: Key, **changes) -> Entry:
    slow = Candidate(schedule(SLOW), "default", "timed", samples=(2e-3, 2.1e-3, 1.9e-3), host=1e-5, finalist=True)
    fast = Candidate(schedule(FAST), "candidate", "timed", samples=(1e-3, 1.1e-3, 0.9e-3), host=1e-5, finalist=True)
    out = Candidate(schedule(fake_backend.WRONG), "candidate", "wrong", "output 'y': values, 3 of 4 blocks, …")
    found = {
        "key": key, "name": "plus", "backends": ("fake",), "candidates": (slow, fast, out), "best": {"fake": 1},
        "winner": 1, "default": 0, "created": "2026-01-01T00:00:00+00:00", "seconds": 1.0,
        "protocol": {"rounds": 3}, "environment": {"gpu": "none"},
    }  # fmt: skip
    return Entry(**{**found, **changes})
