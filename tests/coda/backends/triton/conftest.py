"""Two child processes: `interp` runs a function in Triton's interpreter, `cross` where kernels are compiled for a GPU.

    interp(check_program, "swiglu_backward", 37, 130, 65)

calls the function of the test's own file with JSON arguments in the child; what it raises there fails the test here.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HERE = pathlib.Path(__file__).parent


class Worker:
    """A child process that runs functions of test files."""

    def __init__(self, environment: dict[str, str]) -> None:
        inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        root = str(HERE.parents[3])
        path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "child.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        )

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"file": function.__code__.co_filename, "name": function.__name__, "args": args}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, f"the child ended with code {self.process.wait()}"
        reply = json.loads(line)
        if not reply["ok"]:
            pytest.fail(reply["error"], pytrace=False)
        return reply["result"]

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def interp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A child whose kernels are interpreted."""
    worker = Worker({"TRITON_INTERPRET": "1", "CODA_CACHE_DIR": str(tmp_path_factory.mktemp("interp"))})
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A child that compiles for GPUs."""
    folder = str(tmp_path_factory.mktemp("cross"))
    worker = Worker({"CODA_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder})
    yield worker
    worker.close()
