"""Weight layouts: each has an exact inverse, and a fused kernel on permuted weights gives the unpermuted answer."""

from __future__ import annotations

import pytest
import torch

from coda import errors
from coda.layout import (
    interleave_gate_up,
    pack_qkv,
    rope_halves,
    rope_pairs,
    rope_table,
    split_gate_up,
    unpack_qkv,
)

pytestmark = pytest.mark.interp


@pytest.mark.parametrize("order", ["gate_first", "up_first"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gate_up_round_trip(order, dim):
    w = torch.randn(6, 10)
    mixed = interleave_gate_up(w, dim, order=order)
    assert torch.equal(split_gate_up(mixed, dim, order=order), w)
    gate = w.chunk(2, dim)[0 if order == "gate_first" else 1]
    even = mixed.index_select(dim, torch.arange(0, w.shape[dim], 2))
    assert torch.equal(even, gate)


def test_packed_halves_name_their_order():
    """[1, 2, 3, -1], N = 2: gate first is silu([1, 2])·[3, -1]."""
    x = torch.tensor([1.0, 2.0, 3.0, -1.0])

    def value(order):
        z = interleave_gate_up(x, order=order)
        return (torch.nn.functional.silu(z[::2]) * z[1::2]).tolist()

    assert value("gate_first") == pytest.approx([2.193176, -1.761594], abs=1e-6)
    assert value("up_first") == pytest.approx([2.857722, -0.537883], abs=1e-6)
    with pytest.raises(errors.LayoutError, match="order"):
        interleave_gate_up(x, order="up")


@pytest.mark.parametrize(("head_dim", "rotary"), [(4, None), (8, 4), (80, 20), (6, 0)])
def test_rope_round_trip(head_dim, rotary):
    w = torch.randn(head_dim * 3, 5)
    assert torch.equal(rope_halves(rope_pairs(w, head_dim, rotary_dim=rotary), head_dim, rotary_dim=rotary), w)


def test_rope_pairs_put_halves_side_by_side():
    assert rope_pairs(torch.arange(8), 8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert rope_pairs(torch.arange(16), 8, rotary_dim=4).tolist() == [
        0,
        2,
        1,
        3,
        4,
        5,
        6,
        7,
        8,
        10,
        9,
        11,
        12,
        13,
        14,
        15,
    ]


@pytest.mark.parametrize(("heads", "kv"), [(2, 2), (4, 1), (2, 1)])
def test_qkv_round_trip_with_grouped_heads(heads, kv):
    q, k, v = torch.randn(heads * 8, 3), torch.randn(kv * 8, 3), torch.randn(kv * 8, 3)
    packed = pack_qkv(q, k, v, 8)
    for a, b in zip(unpack_qkv(packed, heads, kv, 8), (q, k, v), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(errors.LayoutError, match="head counts"):
        unpack_qkv(packed, heads + 1, kv, 8)


def rotate_half(x, position, base=1e4):
    d = x.shape[-1]
    angle = position * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def test_the_table_on_pairs_is_rotation_of_halves():
    x = torch.tensor([2.0, -1, 0.5, 3], dtype=torch.float64)
    halves = rotate_half(x, 3)
    assert halves.tolist() == pytest.approx([-2.050545, -1.089537, -0.212756, 2.968655], abs=1e-6)
    table = rope_table(torch.tensor([3]), 4, heads=1, dtype=torch.float64)[0]
    z = rope_pairs(x, 4)
    c, s = table[::2], table[1::2]
    rotated = torch.stack([z[::2] * c - z[1::2] * s, z[::2] * s + z[1::2] * c], -1).flatten()
    assert torch.allclose(rope_halves(rotated, 4), halves)


def test_every_sample_has_its_own_position_and_values_pass_through():
    table = rope_table(torch.tensor([0, 1, 7]), 4, heads=1, kv_heads=1, value_heads=1)
    assert table.shape == (3, 12)
    assert table[0].tolist() == [1, 0] * 6
    assert table[2, 8:].tolist() == [1, 0, 1, 0]
    assert not torch.equal(table[1], table[2])


def test_rotary_dim_leaves_the_tail():
    table = rope_table(torch.tensor([5]), 80, heads=1, rotary_dim=20)
    assert table[0, 20:].tolist() == [1, 0] * 30


def test_angles_survive_bf16_worlds():
    with pytest.raises(errors.LayoutError, match="bfloat16"):
        rope_table(torch.tensor([257.0], dtype=torch.bfloat16), 4, heads=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        table = rope_table(torch.arange(65536, 65600), 2, heads=1)
    assert len({tuple(row) for row in table.tolist()}) == 64
    assert (
        rope_table(torch.tensor([100]), 4, heads=1, base=1e6).tolist()
        != rope_table(torch.tensor([100]), 4, heads=1).tolist()
    )


@pytest.mark.parametrize(
    ("call", "args"),
    [(interleave_gate_up, (torch.ones(3),)), (rope_pairs, (torch.ones(6), 4)), (rope_pairs, (torch.ones(6), 3))],
)
def test_what_does_not_fit(call, args):
    with pytest.raises(errors.LayoutError):
        call(*args)
