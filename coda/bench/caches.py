"""One folder for everything that compilers keep, so that it can be carried to the next machine.

    variables   what a process must have in its environment so that all of them write below one folder

What holds when the folder is carried: each compiler keys its entries by source, options, versions and architecture, and
recompiles what does not fit, so a carried folder is at worst useless, never wrong. The table says what the keys hold.

| cache | filled without a GPU | reused on another machine when |
|---|---|---|
| Triton | what `coda` cross-compiles, by its compile gate | Triton, its ptxas and the architecture are the same |
| quack-kernels | what is compiled for a named architecture (`cutedsl`) | both packages, Python's minor version and the architecture are the same |
| torch.compile | no: Inductor asks the device while it compiles | torch, Triton, the GPU's model and the function are the same |
| FlashInfer | with nvcc | package, CUDA and architecture are the same |
"""

from __future__ import annotations

import pathlib


def variables(folder: pathlib.Path) -> dict[str, str]:
    """For the environment of a process that compiles and runs kernels."""
    places = {
        "CODA_CACHE_DIR": "coda",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "QUACK_CACHE_DIR": "quack",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    }
    return {
        **{name: str(folder.resolve() / place) for name, place in places.items()},
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "QUACK_CACHE_ENABLED": "1",
    }
