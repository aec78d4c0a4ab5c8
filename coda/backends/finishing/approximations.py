"""Coefficients of the functions that both fused backends write themselves: one home, no device code.

    ERF_FAR ERF_NEAR ERF_SPLIT     erf(x) = ±(1 - 2^q(|x|)) from the split on, x·g(x²) below it
    TANH_NEAR TANH_SPLIT           tanh(x) = ±(1 - 2 / (1 + 2^(2·log₂e·|x|))) from the split on, x·(1 + x²·g(x²)) below it
    LN2 LOWEST                     e^x = 2^y·(1 + (x - y·ln 2)) with y = x·log₂e as rounded, from LOWEST on

Polynomials, lowest degree first, are minimax fits of the function's relative error: Lawson's weighted least squares in fp64;
the coefficients were then rounded to fp32 one by one, from the highest, and the rest fitted again. The far one of erf is
log₂ erfc on [1/2, 5] with the weight ln 2 · erfc / erf, doubled from 2.2 on, so that the tail of a normal distribution keeps
what fp32 has of it. It falls beyond 5 too, so no argument is clamped and 2^q is 0 in the end: erf is ±1 exactly from 4 on.

Largest errors over every fp32, each step rounded once; in brackets where the hardware's 2^x is two units in the last place
off and its 1/x one, the most that they may be:

    erf     3.8e-7 (5.0e-7) relative, 2.7e-7 (3.1e-7) absolute
    tanh    2.2e-7 (5.9e-7) relative
    exp     3.6e-7 (6.0e-7) relative
"""

from __future__ import annotations

ERF_SPLIT = 0.5
ERF_FAR = (
    -0.00039916503010317683,
    -1.6254571676254272,
    -0.924080491065979,
    -0.14270907640457153,
    0.026624556630849838,
    -0.0023936391808092594,
)
ERF_NEAR = (1.128378987312317, -0.3761073350906372, 0.1124562993645668, -0.02438933588564396)

TANH_SPLIT = 0.4
TANH_NEAR = (-0.333318829536438, 0.13277629017829895, -0.047794222831726074)

LOG2_E = 1.44269502162933349609375
LN2 = 0.693147182464599609375
LOWEST = -88.0
"""e^x is subnormal below -87.34, and counts as 0."""
