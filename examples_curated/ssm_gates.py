"""Step size, decay and input gain of a state-space layer from its projection.

Computes: dt = min(softplus(x @ w + dt_bias), dt_max), decay = exp(dt·A) and gain = (exp(dt·A) - 1) / A with A =
    -exp(a_log): the zero-order-hold discretisation of one channel per column. Everything is elementwise, so it
    moves behind the projection as it is.
Shapes: x (M, K), w (K, N), dt_bias (N,), a_log (N,) -> dt, decay, gain (M, N) fp32.
Fusion: four maps and three stores in one pass over the accumulator; apart, the projection would be written and read
    again, 2·M·N elements.
Numerics: `expm1` keeps the gain right where dt·A is tiny and exp(dt·A) - 1 would cancel. Decay factors lie close to
    1, where bf16 has steps of 1/256, so all three are stored in fp32.
Constraints: none; any M, N and K.
Lesson: a RowVector is one number per column. Row with row stays a row (A is computed once per column, not per
    element), row with tile is a tile; `store(v, dtype=…)` sets the dtype of a result, and a float keyword is a
    run-time scalar.
"""

import coda
from coda.primitives import RowVector, exp, expm1, minimum, softplus, store

RUNG = 2
IDEA = "row vectors, functions of one number, several results, and the dtype of a store"


@coda.epilogue
def ssm_gates(
    acc,  # (M, N)
    dt_bias: RowVector,  # (N,)
    a_log: RowVector,  # (N,)
    *,
    dt_max: float = 0.1,
):
    """Zero-order-hold gates of a diagonal state-space layer."""
    dt = minimum(softplus(acc + dt_bias), dt_max)
    a = -exp(a_log)
    return {
        "dt": store(dt, dtype="float32"),
        "decay": store(exp(dt * a), dtype="float32"),
        "gain": store(expm1(dt * a) / a, dtype="float32"),
    }


kernel = ssm_gates
