"""In place of Triton and a GPU: kernels that remember how they were launched, and what they are launched on."""

from __future__ import annotations

from typing import Any

import torch

from coda.backends.finishing.arguments import Argument
from coda.problem import Problem, TensorSpec

ARGUMENTS = (
    Argument("a", "descriptor", "a", block=(16, 16)),
    Argument("x_ptr", "pointer", "x", type="*fp32"),
    Argument("x_stride", "stride", "x", dim=0),
    Argument("eps_arg", "scalar", "eps", type="fp32"),
    Argument("k_arg", "scalar", "k", type="i64"),
    Argument("y_out", "pointer", "out.y", type="*fp32"),
    Argument("partials", "workspace"),
    Argument("M", "size", "m"),
)
SPECS = tuple(sorted((name, TensorSpec("float32")) for name in ("a", "x", "out.y")))
PROBLEM = Problem(16, 32, 64, "float32", SPECS, "sm_90")
SIZES = {"m": 16, "n": 32, "k": 64}


def tensors(**changes: Any) -> dict[str, Any]:
    x, y = torch.zeros(16, 32), torch.zeros(16, 32)
    return {"a": torch.zeros(16, 64), "x": x, "eps": 1e-6, "k": 3, "out.y": y, **changes}


class Run:
    """In place of Triton's launcher of a compiled kernel, public and below: remembers what it is called with."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = gsan_enabled = False

    def __init__(self) -> None:
        self.public: list[tuple[Any, ...]] = []
        self.raw: list[tuple[Any, ...]] = []

        def launcher(*args: Any) -> None:
            self.raw.append(args)

        def inner(*args: Any) -> None:
            launcher(*args)

        self.launch = inner

    def __call__(self, *args: Any) -> None:
        self.public.append(args)


class Function:
    """In place of a compiled-on-demand kernel: remembers its launches, and is what it compiled too."""

    function, packed_metadata = 77, (8, 1, 1024)

    def __init__(self) -> None:
        self.slow: list[tuple[Any, ...]] = []
        self.run = Run()

    @property
    def fast(self) -> list[tuple[Any, ...]]:
        return self.run.public

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*args: Any, **options: Any) -> Function:
            self.slow.append((grid, args, options))
            return self

        return launch


class Driver:
    """In place of the driver of a GPU."""

    @staticmethod
    def get_current_stream(device: int) -> int:
        return 1000 + device
