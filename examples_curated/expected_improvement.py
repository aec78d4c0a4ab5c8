"""Expected improvement of candidates behind a head that predicts a mean and a deviation for each.

Computes: with (mu, log_sigma) = z[:, 2k], z[:, 2k+1] of z = x @ w + bias, sigma = exp(log_sigma in -8…4) and u = (mu -
    best)/sigma: improvement = (mu - best)·Φ(u) + sigma·φ(u), Φ(u) = ½(1 + erf(u/√2)), φ(u) = exp(-u²/2)/√(2π). And
    per row how far its best candidate stands out: (max - mean)/√(variance + eps) of the improvements.
Shapes: x (M, K), w (K, N) with N even, bias (N,), best () -> improvement (M, N/2), standout (M,) fp32.
Fusion: means and deviations, M·N elements, never leave the chip; three statistics of a row share one read of it.
Numerics: the deviation is clamped in its logarithm, so that neither it nor u overflows. Mean and variance come from one
    stable pass; everything about the row is of unrounded improvements.
Constraints: N even.
Lesson: the columns of a pair may mean different things; what both give together has half the width, and a reduction
    over it divides by its N/2 columns. Finished vectors of one axis combine freely, whichever primitives made them.
"""

import math

import coda
from coda.primitives import RowVector, Scalar, clamp, erf, exp, row_max, row_moments, rsqrt, unpair

RUNG = 10
IDEA = "statistics of half the width, and several of them finished into one number per row"
INV_SQRT_2 = math.sqrt(0.5)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)


@coda.epilogue
def expected_improvement(
    acc,  # (M, N)
    bias: RowVector,  # (N,)
    best: Scalar,  # ()
    *,
    eps: float = 1e-6,
):
    """Expected improvement over the best value so far, and how far the best candidate of a row stands out."""
    mu, log_sigma = unpair(acc + bias)
    gain, sigma = mu - best, exp(clamp(log_sigma, -8, 4))
    u = gain / sigma
    improvement = gain * 0.5 * (1 + erf(u * INV_SQRT_2)) + sigma * exp(-0.5 * u * u) * INV_SQRT_2PI
    mean, variance = row_moments(improvement)
    return {"improvement": improvement, "standout": (row_max(improvement) - mean) * rsqrt(variance + eps)}


kernel = expected_improvement
