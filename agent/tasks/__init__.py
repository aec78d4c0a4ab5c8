"""The task bank: one file per task, named after its id, each with a `TASK`. See `agent/task.py`.

    residual_rms  residual_rms_linear                     the first half of a norm; a norm between two GEMMs
    rms_scale  rms_swiglu  rms_rope  rms_cross_entropy    the delayed row scale of a norm, and what follows it
    gemm_swiglu  gemm_rope  gemm_cross_entropy            the same maps without a norm
    swiglu_backward  rms_backward                         gradients behind a dgrad GEMM

A file stands alone (a verdict belongs to the digest of the task's file), so what two tasks share is written twice.
"""
