"""A learned mask on a complex spectrum: one number of the projection for every complex number of the signal.

Computes: mask = sigmoid(x @ w + bias), and with (re, im) = s[:, 2k], s[:, 2k+1]: masked = (mask·re, mask·im),
    interleaved like s; kept = Re Σ_k masked·conj(s), what is left of each frame; and per band the energy Σ_i |masked|²
    over the frames that are not padding (the last `padding` rows are).
Shapes: x (M, K), w (K, N), bias (N,), s (M, 2N) -> masked (M, 2N), mask (M, N), kept (M,) fp32, energy (N,) fp32.
Fusion: the masked spectrum is written and not read back for either statistic: 4·M·N elements saved.
Numerics: both sums are of unrounded products in fp32. A padded frame is replaced by 0 before the sum, so that not even
    a NaN in it counts.
Constraints: none; N is the number of bands and s has twice as many columns.
Lesson: N is the accumulator's. Tile(width=2) brings two numbers for each of its elements: `unpair` them, compute with
    `acc` at its own width, and `pair` what shall have the doubled layout again. A sum of products of two tiles needs
    no further pass.
"""

import coda
from coda.primitives import RowVector, Tile, col_sum, pair, row_index, row_sum, rows, sigmoid, unpair, where

RUNG = 20
IDEA = "a tile of twice the width: two numbers for each element of the accumulator, in and out"


@coda.epilogue
def spectral_mask(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
    s: Tile(width=2),  # (M, 2N)
    *,
    padding: int = 0,
):
    """Masked spectrum, mask, what is left of each frame, energy of each band."""
    re, im = unpair(s)
    mask = sigmoid(acc + bias)
    left_re, left_im = mask * re, mask * im
    power = where(row_index() < rows() - padding, left_re * left_re + left_im * left_im, 0.0)
    return {
        "masked": pair(left_re, left_im),
        "mask": mask,
        "kept": row_sum(left_re * re + left_im * im),
        "energy": col_sum(power),
    }


kernel = spectral_mask
