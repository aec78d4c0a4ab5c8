"""Choosing backend and schedule by measurement, for the calls that come after.

crew.py      child processes: several that build, one that races; deadlines, and what is left of a child that hangs or dies
child.py     such a process: requests in, answers out
steps.py     what it does: build, draw inputs and the right outputs, try one schedule, race several
tensors.py   synthetic tensors of a problem's dtypes, strides and alignments
jobs.py      what to tune: the programs of a call with their problems
contest.py   one race: who takes part, what became of each, who won
search.py    tune: jobs in, outcomes out; builds ahead while it races
building.py  compiling without racing: for a GPU that need not be here, or ahead of many calls

A schedule is compiled in a process of its own, checked against the fp64 reference, and only then timed, with the protocol of
`coda.bench.timing`. What wins is kept by `coda.schedules`, and `coda.tune` reads it; a call never tunes.
"""

from __future__ import annotations

from coda.tuning.building import Built, build_ahead, compile_only
from coda.tuning.jobs import Job, jobs
from coda.tuning.search import Limits, Outcome, Progress, Protocol, tune

__all__ = ["Built", "Job", "Limits", "Outcome", "Progress", "Protocol", "build_ahead", "compile_only", "jobs", "tune"]
