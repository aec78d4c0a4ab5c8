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
from coda.tuning.jobs import Job

HERE = pathlib.Path(__file__).parent


@coda.epilogue
def plus(acc, x: Tile):
    return {"y": acc + x}


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
