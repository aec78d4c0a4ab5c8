"""Weight layouts that adjacent pairs need, and the way back.

A pair function reads columns 2k and 2k+1 of a GEMM's result, so the weights that produce a pair must lie side by side:

    interleave_gate_up / split_gate_up    [gate | up] blocks  <->  gate and up alternating
    rope_pairs / rope_halves              rotate-half order   <->  adjacent pairs, head by head (GQA: any head counts)
    rope_table                            cos and sin for adjacent pairs, angles in fp32 or better

All of them permute the output dimension of a weight (out_features, in_features), a bias (out_features,), or the last
dimension of an activation, given by `dim`; each is a copy, and each has an exact inverse.
"""

from __future__ import annotations

from typing import Literal

import torch

from coda.errors import LayoutError


def _length(x: torch.Tensor, dim: int, multiple: int, what: str) -> int:
    length = x.shape[dim]
    if length % multiple:
        raise LayoutError(
            f"{what}: the dimension does not divide",
            got=f"{length} in {tuple(x.shape)}",
            expected=f"a multiple of {multiple}",
        )
    return length


def interleave_gate_up(
    x: torch.Tensor, dim: int = 0, *, order: Literal["gate_first", "up_first"] = "gate_first"
) -> torch.Tensor:
    """From two blocks of F to 2F alternating entries: gate k at 2k, up k at 2k+1.

    `order` says which block comes first in `x`. Raises `LayoutError` for an odd length or an unknown order.
    """
    half = _length(x, dim, 2, "interleave_gate_up") // 2
    first, second = x.narrow(dim, 0, half), x.narrow(dim, half, half)
    gate, up = _ordered(first, second, order)
    return torch.stack([gate, up], dim=dim % x.ndim + 1).flatten(dim % x.ndim, dim % x.ndim + 1)


def split_gate_up(
    x: torch.Tensor, dim: int = 0, *, order: Literal["gate_first", "up_first"] = "gate_first"
) -> torch.Tensor:
    """The inverse of `interleave_gate_up` with the same `order`."""
    half = _length(x, dim, 2, "split_gate_up") // 2
    pairs = x.reshape(*x.shape[: dim % x.ndim], half, 2, *x.shape[dim % x.ndim + 1 :])
    gate, up = pairs.select(dim % x.ndim + 1, 0), pairs.select(dim % x.ndim + 1, 1)
    return torch.cat(_ordered(gate, up, order), dim=dim)


def _ordered(first: torch.Tensor, second: torch.Tensor, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    if order == "gate_first":
        return first, second
    if order == "up_first":
        return second, first
    raise LayoutError("gate and up: unknown order", got=repr(order), expected="'gate_first' or 'up_first'")


def rope_pairs(x: torch.Tensor, head_dim: int, dim: int = 0, *, rotary_dim: int | None = None) -> torch.Tensor:
    """From rotate-half order to adjacent pairs: within each head, entry i and i + rotary_dim/2 become 2i and 2i+1.

    The dimension holds any number of heads (a Q or K projection, with or without grouped heads). Entries from
    `rotary_dim` (default: the whole head) on stay where they are. Raises `LayoutError`.
    """
    return _permute_heads(x, head_dim, dim, rotary_dim, to_pairs=True)


def rope_halves(x: torch.Tensor, head_dim: int, dim: int = 0, *, rotary_dim: int | None = None) -> torch.Tensor:
    """The inverse of `rope_pairs`."""
    return _permute_heads(x, head_dim, dim, rotary_dim, to_pairs=False)


def _permute_heads(x: torch.Tensor, head_dim: int, dim: int, rotary_dim: int | None, *, to_pairs: bool) -> torch.Tensor:
    what = "rope_pairs" if to_pairs else "rope_halves"
    rotary = head_dim if rotary_dim is None else rotary_dim
    if head_dim < 1 or rotary % 2 or not 0 <= rotary <= head_dim:
        raise LayoutError(
            f"{what}: rotary_dim", got=f"{rotary} of {head_dim}", expected="an even number up to head_dim"
        )
    heads = _length(x, dim, head_dim, what) // head_dim
    index = torch.arange(head_dim, device=x.device)
    if rotary:
        shape = (2, rotary // 2) if to_pairs else (rotary // 2, 2)
        index[:rotary] = index[:rotary].view(shape).mT.reshape(-1)
    whole = (torch.arange(heads, device=x.device)[:, None] * head_dim + index).reshape(-1)
    return x.index_select(dim, whole)


def pack_qkv(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head_dim: int, *, rotary_dim: int | None = None
) -> torch.Tensor:
    """One weight [Q|K|V] (out, in) from three, Q and K in adjacent-pair order, V untouched. Head counts may differ (GQA)."""
    _length(v, 0, head_dim, "pack_qkv")
    return torch.cat(
        [rope_pairs(q, head_dim, rotary_dim=rotary_dim), rope_pairs(k, head_dim, rotary_dim=rotary_dim), v]
    )


def unpack_qkv(
    qkv: torch.Tensor, heads: int, kv_heads: int, head_dim: int, *, rotary_dim: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of `pack_qkv`. Raises `LayoutError` where the head counts do not fit the weight."""
    expected = (heads + 2 * kv_heads) * head_dim
    if qkv.shape[0] != expected:
        raise LayoutError(
            "unpack_qkv: the head counts do not fit",
            got=qkv.shape[0],
            expected=f"{expected} = ({heads} + 2·{kv_heads})·{head_dim}",
        )
    q, k, v = torch.split(qkv, [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
    return rope_halves(q, head_dim, rotary_dim=rotary_dim), rope_halves(k, head_dim, rotary_dim=rotary_dim), v.clone()


def rope_table(
    positions: torch.Tensor,  # (M,)
    head_dim: int,
    *,
    heads: int,
    kv_heads: int = 0,
    value_heads: int = 0,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """A (M, (heads + kv_heads + value_heads)·head_dim) table: cos at 2i, sin at 2i+1 of each pair of columns.

    Value heads and the columns beyond `rotary_dim` get cos 1, sin 0: they pass through. Angles are computed in fp64, also
    under autocast, and rounded once to `dtype`. Raises `LayoutError` for a bad rotary_dim or integer-like positions in a
    16-bit dtype (257 is not a bfloat16).
    """
    rotary = head_dim if rotary_dim is None else rotary_dim
    if head_dim % 2 or rotary % 2 or not 0 <= rotary <= head_dim:
        raise LayoutError(
            "rope_table: head_dim and rotary_dim", got=f"{head_dim}, {rotary}", expected="even, rotary_dim ≤ head_dim"
        )
    if positions.is_floating_point() and positions.element_size() < 4:
        raise LayoutError("rope_table: positions", got=str(positions.dtype), expected="an integer dtype, or fp32")
    with torch.autocast(positions.device.type, enabled=False):
        pair = torch.arange(rotary // 2, dtype=torch.float64, device=positions.device)
        angles = positions.to(torch.float64)[:, None] * base ** (-2 * pair / max(rotary, 1))  # (M, rotary/2)
        still = angles.new_zeros(positions.shape[0], (head_dim - rotary) // 2)
        turning = torch.cat([angles, still], 1).repeat(1, heads + kv_heads)
        whole = torch.cat([turning, angles.new_zeros(positions.shape[0], value_heads * head_dim // 2)], 1)
        return torch.stack([whole.cos(), whole.sin()], -1).flatten(1).to(dtype)
