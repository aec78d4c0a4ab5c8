"""How the peers' kernels are called for our tasks: one file per package, each with `ADAPTERS: {task id: Build}`.

    pytorch.py            eager, torch.compile, the plain GEMM; torch.compile on contiguous halves
    quack.py              quack-kernels: fused epilogues that people wrote, in five configurations
    liger.py              Liger: Triton kernels beside a cuBLAS GEMM
    flashinfer.py         FlashInfer: CUDA kernels beside a cuBLAS GEMM
    cut_cross_entropy.py  Apple's loss that never writes the logits
    shared.py             layouts, targets and logits as several of them need them

No package is imported before a candidate is built. A task that is not in a package's table has no kernel there for the same
mathematics; each file's docstring names the near misses and why they are none.
"""
