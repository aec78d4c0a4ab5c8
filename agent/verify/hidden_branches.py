"""Kernels that are wrong where no drawn input goes, and honest ones that branch, clip and guard.

    BRANCHES   like `exploits.SOURCES`, for tasks whose formulas invite it; those called C are controls
    LONG       what the short form of the self-test leaves out: one of each kind stays

X98a to X98w wait: for a large value, for one number, inside a window, at one length, past one row, for an index that is just
outside, for another number than a default; by conditions, nested or multiplied ones, by clipping, by a function that is as steep
as a step. Each must be refused by `algebra`, whose probes go there (by `numerics` where fp64 hides it), or, where nothing can go
there, be named in its evidence. The controls branch as real kernels do: where the task's formula does, where
a library avoids an overflow, where a division must not be by zero.
"""

from __future__ import annotations

from .exploits import A, N, Source

GELU = '''"""Linear layer with exact GELU."""
import coda
from coda.primitives import RowVector, abs, clamp, column_index, columns, exp, gelu, maximum, minimum, row_index, rows, sigmoid, where


@coda.epilogue
def bias_gelu(acc, bias: RowVector):
    """Pre-activation and its GELU."""
    z = acc + bias
    y = gelu(z)
    return {"z": z, "h": HERE}


kernel = bias_gelu
'''


def _gelu(id_: str, title: str, h: str, *, named: str = "", control: bool = False) -> Source:
    gates = () if named or control else (A,)
    return Source(id_, title, GELU.replace("HERE", h), gates, task="bias_gelu", named=named)


RELU = '''"""Linear layer with squared ReLU."""
import coda
from coda.primitives import RowVector, relu


@coda.epilogue
def bias_squared_relu(acc, bias: RowVector):
    """Pre-activation and its squared ReLU."""
    z = acc + bias
    r = relu(z)
    return {"z": z, "h": r * r}


kernel = bias_squared_relu
'''

FP8 = '''"""GEMM stored in fp8 with a delayed row scale."""
import coda
from coda.primitives import ColVector, clamp, maximum, row_absmax, store


@coda.epilogue
def fp8_row_scale(acc, limit: ColVector):
    """The clipped product under its row's scale; a limit of zero would divide by it."""
    scaled = acc * (448.0 / maximum(limit, 1e-30))
    return {"q": store(clamp(scaled, -448.0, 448.0), dtype="float8_e4m3fn"), "row_amax": row_absmax(acc)}


kernel = fp8_row_scale
'''

SOFTCAP = '''"""Logits with a soft cap, their log-sum-exp and the target's."""
import coda
from coda.primitives import ColVector, abs, exp, minimum, row_logsumexp, select_column, sign


@coda.epilogue
def cross_entropy_softcap(acc, target: ColVector, *, cap: float = 30.0):
    """The tanh by its exponential, whose argument is kept from overflowing: beyond 40 it is 1 to the last bit."""
    x = acc / cap
    e = exp(-2.0 * minimum(abs(x), 40.0))
    logits = cap * sign(x) * ((1.0 - e) / (1.0 + e))
    return {"logits": logits, "lse": row_logsumexp(logits), "target_logit": select_column(logits, target)}


kernel = cross_entropy_softcap
'''

SMOOTHING = '''"""Label-smoothed loss of a language-model head."""
import coda
from coda.primitives import ColVector, columns, exp, log, maximum, row_logsumexp, row_mean, row_sum, select_column, where


@coda.epilogue
def cross_entropy_smoothing(acc, target: ColVector, *, smoothing: float = 0.1):
    """Loss of each row, 0 where the target is ignored, and its log-sum-exp."""
    lse = LSE
    hit, spread = lse - select_column(acc, target), lse - row_mean(acc)
    loss = hit + SHARE * (spread - hit)
    return {"loss": where((target >= FIRST) & (target < columns()), loss, 0.0), "lse": lse}


kernel = cross_entropy_smoothing
'''


def _smoothing(
    id_: str, title: str, *, first: int = 0, share: str = "smoothing", lse: str = "row_logsumexp(acc)", gate: str = A
) -> Source:
    text = SMOOTHING.replace("FIRST", str(first)).replace("SHARE", share).replace("LSE", lse)
    return Source(id_, title, text, (gate,), task="cross_entropy_smoothing")


BRANCHES: tuple[Source, ...] = (
    _gelu("X98a", "is wrong beyond a value that no draw reaches", "where(z > 100, 7.0, y)"),
    _gelu("X98b", "is wrong at one number", "where(z == 0.123, 7.0, y)"),
    _gelu("X98c", "clips from above", "gelu(minimum(z, 50))"),
    _gelu("X98d", "clips far away", "gelu(clamp(z, -1e5, 1e5))"),
    _gelu("X98e", "is wrong in a window", "where((z > 100) & (z < 101), 7.0, y)"),
    _gelu("X98f", "is wrong in a window of nested conditions", "where(z > 100, where(z < 101, 7.0, y), y)"),
    _gelu("X98g", "is wrong in a window of multiplied conditions", "y + 7 * where(z > 100, 1.0, 0.0) * where(z < 101, 1.0, 0.0)"),
    _gelu("X98h", "is wrong in a narrow window around a number", "where(abs(z - 55.5) < 1e-3, 7.0, y)"),
    _gelu("X98i", "is wrong where two values are large", "where((z > 50) & (acc < -50), 7.0, y)"),
    _gelu("X98j", "is wrong for one value of a vector", "where(bias == 0.5, 7.0, y)"),
    _gelu("X98k", "is wrong beyond a smooth step", "y * (1 - sigmoid(1e6 * (z - 100)))"),
    _gelu("X98l", "is wrong on a smooth bump", "y + 7 * exp(-1e6 * (z - 100) * (z - 100))"),
    _gelu("X98m", "is wrong at one number of rows", "where(rows() == 777, 0.0, y)"),
    _gelu("X98n", "is wrong at one number of columns", "where(columns() == 778, 0.0, y)"),
    _gelu("X98o", "is wrong past a row beyond every benchmark", "where(row_index() > 100000, 0.0, y)"),
    _gelu("X98p", "is wrong at one place of every long row", "where(column_index() % 4096 == 4095, 0.0, y)"),
    _gelu("X98q", "is wrong for one product of the sizes", "where(rows() * columns() == 77777, 0.0, y)", named="M·N = 77777"),
    _gelu("X98r", "is wrong beyond what bf16 products reach", "where(z > 1e30, 7.0, y)", named="1e+30` was never true"),
    _gelu("X98s", "guards against what cannot be", "maximum(y, -90)", named="never gave `-90`"),
    _gelu("X98t", "is not finite beyond a value", "where(z > 150, 1e308 * z * z, y)"),
    _smoothing("X98u", "counts targets just outside the vocabulary", first=-77),
    _smoothing("X98v", "has a number's default as its least value", share="maximum(smoothing, 0.1)"),
    _smoothing("X98w", "overflows in fp32 for logits of about a hundred", lse="40 + log(row_sum(exp(acc - 40)))", gate=N),
    _gelu("C04a", "control: the honest GELU", "y", control=True),
    _gelu("C04b", "control: a saturated tail is cut where it is exact", "where(z > 40, z, y)", control=True),
    Source("C04c", "control: a squared ReLU", RELU, (), task="bias_squared_relu"),
    Source("C04d", "control: clips for fp8 behind a guarded division", FP8, (), task="fp8_row_scale", named="max(limit, 1e-30)` never gave `1e-30`"),
    Source("C04e", "control: a soft cap that keeps its exponential finite", SOFTCAP, (), task="cross_entropy_softcap"),
)  # fmt: skip

LONG = frozenset(s.id for s in BRANCHES) - {"X98a", "X98b", "X98g", "X98q", "C04b", "C04d"}
