"""coda: GEMM-plus-epilogue kernels as data.

    errors.py, env.py          every error; every CODA_* variable
    files.py                   files that are whole or not there
    numerics.py                error metrics and the only tolerance rule;  stochastic.py  what rounding does, by rounding at random
    primitives/                the closed vocabulary, one file per class
    problem.py                 Problem (where a program runs), Schedule (how)
    program.py, tracing.py     EpilogueProgram, and making one from a function
    plan.py, plan_tracing.py   Plan: several programs in a line, and making one
    explain.py, evaluate.py    a program written down and costed; a program computed in fp64
    arguments.py, binding.py   call arguments by name; every check of a call
    layout.py                  weight layouts that adjacent pairs need
    backends/                  reference and generated kernels behind one registry
    schedules.py               measured schedules in the user's cache folder
    tune.py                    which backend and schedule a call uses
    call.py, replay.py         one call of a program, and of a plan: checked once, then quick
    warm.py, written.py        the warm path of a kind of call, written as one function;  torch_private.py  what is not public of PyTorch
    handles.py                 kernels by number
    torch_operator.py          a call inside a graph of torch.compile
    kernel.py                  the decorators and what they return
    bench/                     timing, peers, roofline, records
    testing.py                 poisoned and guarded buffers for tests
    tuning/                    choosing backend and schedule by measurement

Importing coda imports no torch and no backend.
"""

from __future__ import annotations

from coda.kernel import epilogue, matmul, plan, pointwise
from coda.problem import Problem, Schedule

__version__ = "0.1.0"
__all__ = ["Problem", "Schedule", "epilogue", "matmul", "plan", "pointwise"]
