"""Language-model head behind the final norm: the delayed row scale, then logits and their statistics.

Computes: logits = diag(rstd)·(q @ w), lse[i] = log Σ_j exp(logits[i, j]), target_logit[i] = logits[i, target[i]]. A
    log-sum-exp does not commute with a scale, so the scale comes first; it costs a multiplication in registers.
Shapes: q (M, K), w (K, N) with N the vocabulary, rstd (M,) fp32, target (M,) int -> logits (M, N), lse (M,),
    target_logit (M,) fp32.
Fusion: the final norm's pass over the stream (2·M·K elements) and the re-reading of the logits (M·N) are gone.
Numerics: all statistics are of the unrounded, scaled fp32 logits. Three results of one value see the same bits.
Constraints: none. A target outside [0, N) gives target_logit 0.
Lesson: reduce the value that is stored, not the accumulator that it came from. A transform before a reduction is
    part of the program, whichever class the reduction has.
"""

import coda
from coda.primitives import ColVector, row_logsumexp, select_column

RUNG = 12
IDEA = "a map in front of a stateful transform: reduce the value that the results are about"


@coda.epilogue
def rms_cross_entropy(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
    target: ColVector,  # (M,), int
):
    """Scaled logits and what cross-entropy needs of each row."""
    logits = acc * rstd
    return {"logits": logits, "lse": row_logsumexp(logits), "target_logit": select_column(logits, target)}


kernel = rms_cross_entropy
