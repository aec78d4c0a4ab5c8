"""Row-scaled logits with the log-sum-exp of each row and the logit of its target."""

import coda
from coda.primitives import ColVector, row_logsumexp, select_column


@coda.epilogue
def rms_cross_entropy(
    acc,  # (M, N)
    rstd: ColVector,  # (M,)
    target: ColVector,  # (M,), int
):
    """Scaled logits, and their cross-entropy statistics from the unrounded values."""
    logits = acc * rstd
    return {
        "logits": logits,
        "lse": row_logsumexp(logits),
        "target_logit": select_column(logits, target),
    }


kernel = rms_cross_entropy
