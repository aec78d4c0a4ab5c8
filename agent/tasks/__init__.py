"""The task bank: one file per task, named after its id, each with a `TASK`. See `agent/task.py`.

    residual_rms  residual_rms_linear                     the first half of a norm; a norm between two GEMMs
    rms_scale  rms_swiglu  rms_rope  rms_cross_entropy    the delayed row scale of a norm, and what follows it
    gemm_swiglu  gemm_rope  gemm_cross_entropy            the same maps without a norm
    swiglu_backward  rms_backward                         gradients behind a dgrad GEMM
    residual_layernorm  layernorm_linear                  the two halves of LayerNorm; layernorm_backward its gradient
    bias_squared_relu  bias_gelu  bias_gelu_tanh  bias_silu                             plain activations
    squared_relu_backward  gelu_backward  gelu_tanh_backward  silu_backward             their gradients, with the bias's
    gemm_geglu  gemm_geglu_tanh  gemm_reglu                                             gated activations
    geglu_backward  geglu_tanh_backward  reglu_backward                                 their gradients, with <Z, dZ>
    gemm_rope_positions  head_norm_rope  qkv_norm_rope    angles in registers; norms per head; rope_backward (no GEMM)
    cross_entropy_softcap  cross_entropy_z_loss  cross_entropy_smoothing                losses of a head
    cross_entropy_backward  cross_entropy_loss_and_gradient                             their gradients, logits recomputed
    layer_scale_residual  sigmoid_gate  router_scores     residual, gate, router
    fp8_row_scale  fp8_block_scale                        stores in fp8 with a scale known before, or found in the tile
    mlp_residual  attention_out_qkv  lm_head_loss  residual_mlp_block                   plans of two and three GEMMs

A file stands alone (a verdict belongs to the digest of the task's file), so what two tasks share is written twice.
"""
