"""Per-head RMSNorm and rotary embedding of queries or keys in one epilogue, angles computed in registers.

Computes: every head of HEAD columns of x @ w is divided by its root mean square and multiplied by gamma; then the
    pair (2k, 2k+1) of a head is turned by the angle position·frequency[k]. Positions are the row numbers within
    sequences of equal length. A head lies inside one tile, so its mean is tile-local and may be used by the tile
    itself.
Shapes: x (M, K), w (K, N) with N a multiple of HEAD, gamma (HEAD,), frequency (HEAD/2,) -> rotated (M, N).
Fusion: the unfused chain reads and writes (M, N) three times. No angle table is read either: M·N elements against
    HEAD/2 frequencies.
Numerics: positions are integers and angles fp32 (sin and cos hold up to |x| = 1e5): in bf16 positions 256 and 257
    would be equal. Frequencies belong in fp32. One rounding, at the store.
Constraints: HEAD divides N. M is whole sequences of `sequence` rows, or part of one. Frequency 0 leaves a pair as
    it is.
Lesson: a segment reduction is *not* finished later: it is one number per row and group of columns, available at
    once. RowVector(period=p) repeats p numbers along the columns; `row_index()` and `column_index()` cost nothing
    to load.
"""

import coda
from coda.primitives import RowVector, cos, pair, row_index, rsqrt, segment_mean, sin, unpair

RUNG = 15
IDEA = "segment reductions are tile-local: normalise a head inside its tile; periodic vectors; row numbers"
HEAD = 64


@coda.epilogue
def qk_norm_rope(
    acc,  # (M, N)
    gamma: RowVector(period=HEAD),  # (HEAD,)
    frequency: RowVector(width=0.5, period=HEAD // 2),  # (HEAD/2,)
    *,
    eps: float = 1e-6,
    sequence: int = 4096,
):
    """Heads normalised, gained and rotated by the position of their row."""
    normed = acc * rsqrt(segment_mean(acc * acc, HEAD) + eps) * gamma
    angle = (row_index() % sequence) * frequency
    even, odd = unpair(normed)
    return {"rotated": pair(even * cos(angle) - odd * sin(angle), even * sin(angle) + odd * cos(angle))}


kernel = qk_norm_rope
