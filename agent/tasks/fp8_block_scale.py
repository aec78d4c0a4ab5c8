"""Task: a GEMM stored in fp8 with a scale for every 1×128 block, computed from the block itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task

BLOCK = 128
LARGEST = 448.0
"""The largest e4m3 number."""
TINY = 1e-12
"""What a block's magnitude counts as at least, so that a block of zeros divides by something."""


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    blocks = (x.to(wide) @ w.to(wide)).reshape(x.shape[0], -1, BLOCK)
    scale = blocks.abs().amax(2).clamp_min(TINY) / LARGEST
    return {"q": (blocks / scale[:, :, None]).flatten(1), "scale": scale}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
) -> dict[str, Tensor]:
    """The product in the working dtype, then quantisation in fp32, as quantised training has it."""
    blocks = (x @ w).float().reshape(x.shape[0], -1, BLOCK)
    scale = blocks.abs().amax(2).clamp_min(TINY) / LARGEST
    q = (blocks / scale[:, :, None]).clamp(-LARGEST, LARGEST)
    return {"q": q.flatten(1).to(torch.float8_e4m3fn), "scale": scale}


TASK = Task(
    id="fp8_block_scale",
    title="GEMM stored in fp8 with 1×128 block scales",
    aliases=(
        "block scaled fp8",
        "1x128 fp8 quantisation",
        "gemm fp8 output block scales",
        "e4m3 store with block scales",
        "deepseek activation quantisation",
    ),
    family="fp8",
    difficulty=2,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
    ),
    outputs=(Result("q", ("M", "N"), dtype="float8_e4m3fn"), Result("scale", ("M", "N//128"), dtype="float32")),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 128, "K": 48}, "one block per row, K not a power of two"),
        Shape("smoke", {"M": 64, "N": 512, "K": 32}, "four blocks per row"),
        Shape("ragged", {"M": 1, "N": 128, "K": 1}, "one row of one block"),
        Shape("ragged", {"M": 37, "N": 384, "K": 65}, "a block past a wide tile, odd M and K"),
        Shape("ragged", {"M": 129, "N": 256, "K": 64}, "one row past a tile"),
        Shape("ragged", {"M": 7, "N": 640, "K": 199}, "few rows, long K"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "7B hidden size: half the bytes of a bf16 store"),
        Shape("benchmark", {"M": 8192, "N": 8192, "K": 8192}, "70B hidden size"),
        Shape("benchmark", {"M": 512, "N": 4096, "K": 4096}, "a small batch: few tiles, launches tell"),
    ),
    needs=("maximum", "segment_absmax", "store", "segment-in-tile", "fp8-store", "block-scale"),
    description="""\
z = x @ w
scale[i, t] = max(max_j |z[i, j]|, 1e-12) / 448        j over the 128 columns of block t
q[i, j] = z[i, j] / scale[i, j div 128]

x is (M, K), w is (K, N) with N a multiple of 128. A block is 128 neighbouring columns of one row. q is (M, N),
stored as float8_e4m3fn, whose largest number is 448, and rounded once; scale is (M, N/128) and fp32, from the
unrounded z. q·scale is approximately z.""",
)
