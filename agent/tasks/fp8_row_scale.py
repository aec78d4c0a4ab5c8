"""Task: a GEMM stored in fp8 with a row scale chosen earlier (delayed scaling), and the magnitudes for the next one."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task

LARGEST = 448.0
"""The largest e4m3 number."""


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    limit: Tensor,  # (M,), the magnitude that each row's scale was chosen for
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z = x.to(wide) @ w.to(wide)
    return {"q": (z * LARGEST / limit.to(wide)[:, None]).clamp(-LARGEST, LARGEST), "row_amax": z.abs().amax(1)}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    limit: Tensor,  # (M,), the magnitude that each row's scale was chosen for
) -> dict[str, Tensor]:
    """The product in the working dtype, then quantisation in fp32, as quantised training has it."""
    z = (x @ w).float()
    q = (z * (LARGEST / limit)[:, None]).clamp(-LARGEST, LARGEST)
    return {"q": q.to(torch.float8_e4m3fn), "row_amax": z.abs().amax(1)}


TASK = Task(
    id="fp8_row_scale",
    title="GEMM stored in fp8 with a delayed row scale",
    aliases=(
        "row scaled fp8",
        "delayed scaling fp8",
        "gemm fp8 output row scale",
        "e4m3 store with delayed scale",
        "row wise fp8 quantisation",
    ),
    family="fp8",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("limit", ("M",), draw="positive", dtype="float32"),
    ),
    outputs=(Result("q", ("M", "N"), dtype="float8_e4m3fn"), Result("row_amax", ("M",), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 160, "K": 32}, "several column tiles per statistic"),
        Shape("smoke", {"M": 64, "N": 64, "K": 64}, "all square: transposed or copied results must show"),
        Shape("ragged", {"M": 1, "N": 2, "K": 1}, "one product per element"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("ragged", {"M": 199, "N": 7, "K": 130}, "fewer columns than any tile"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: half the bytes of a bf16 store"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: the finishing step weighs more"),
    ),
    needs=("ColVector", "clamp", "row_absmax", "store", "row-scale", "clipped", "row-statistic", "fp8-store"),
    description="""\
z = x @ w
q[i, j] = clip(z[i, j]·448/limit[i], -448, 448)
row_amax[i] = max_j |z[i, j]|

x is (M, K), w is (K, N). limit is (M,) and fp32: the magnitude that the row's scale was chosen for, from earlier
steps, positive. q is (M, N), stored as float8_e4m3fn, whose largest number is 448, and rounded once. Values beyond
the limit are clipped; the clip belongs to the formula and is compared before rounding, so it is written out and not
left to the store. row_amax is (M,), fp32, of the unrounded and unclipped z: what a later step's limit is chosen
from. q·limit/448 is approximately z.""",
)
