"""What the fused backends share: a program taken apart, and the Triton kernel that finishes it.

No tile is computed here. What launches kernels serves those of tiles too, whose arguments it passes on: `Argument` has a
`block` and a transpose for the descriptors of A and B.

    anatomy.py     a program taken apart: statistics, their place in the workspace, what the tiles and the finisher each write
    lowering.py    one table: operation -> Triton expression; literals, loads, roundings
    cheaper.py     operations that what surrounds them makes cheaper, for both backends' tables
    approximations.py  coefficients of erf, tanh and exp, for both
    vectors.py     scalars, rows and columns as text
    arguments.py   what a generated kernel takes
    finisher.py    the text of the finishing kernel
    maths.py       functions that generated kernels call: accurate exp, tanh, …, narrow floats
    partials.py    functions that the finisher calls: the partials of all tiles into one number
    modules.py     text -> imported module, by way of the cache folder
    dispatch.py    one kernel's launches, past Triton's own dispatch
    straight.py    launches that are alike: all kernels of one in one function
    refusals.py    what Triton's compiler raises, as one of our errors
    private.py     the launcher under Triton's launcher, with the reason

Only maths.py and partials.py import Triton when they are imported, and only generated texts import those.
"""
