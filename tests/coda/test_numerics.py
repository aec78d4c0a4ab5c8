"""The tolerance rule: honest kernels pass every time, and each way of being wrong fails every time."""

from __future__ import annotations

import math
import re

import pytest
import torch

from coda import numerics
from coda.numerics import exact, response, within

pytestmark = pytest.mark.interp

M, N, K = 48, 80, 192


def gemm(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(M, K, generator=g, dtype=torch.float64).to(dtype)
    b = (torch.randn(K, N, generator=g, dtype=torch.float64) / math.sqrt(K)).to(dtype)
    a64, b64 = a.double(), b.double()
    reference = a64 @ b64
    noise = response(lambda x: {"y": x["a"] @ x["b"]}, {"a": a64, "b": b64}, {"y": reference}, seed=seed)["y"]
    return {"a": a, "b": b, "reference": reference, "trusted": (a.float() @ b.float()).to(dtype), "noise": noise}


def other_order(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """An honest fp32 accumulation that is as unlucky as can be: strictly sequential."""
    acc = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        acc += a[:, k : k + 1].float() * b[k : k + 1].float()
    return acc


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_honest_kernels_pass_for_every_seed(dtype: str) -> None:
    for seed in range(60):  # X49: an honest kernel that fails one seed in a hundred is a broken rule
        g = gemm(seed, getattr(torch, dtype))
        honest = other_order(g["a"], g["b"]).to(getattr(torch, dtype))
        found = within(honest, g["trusted"], g["reference"], working=dtype, noise=g["noise"], length=K)
        assert found.ok, (seed, found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("factor", [1.01, 0.99])
def test_one_per_cent_fails_for_every_seed(dtype: str, factor: float) -> None:
    for seed in range(30):
        g = gemm(seed, getattr(torch, dtype))
        wrong = (g["reference"] * factor).to(getattr(torch, dtype))
        assert not within(wrong, g["trusted"], g["reference"], working=dtype, noise=g["noise"], length=K).ok


def test_a_poor_baseline_does_not_loosen_the_rule() -> None:
    g = gemm(1, torch.bfloat16)
    poor = (g["reference"] * 1.3).to(torch.bfloat16)
    wrong = (g["reference"] * 1.01).to(torch.bfloat16)
    assert not within(wrong, poor, g["reference"], working="bfloat16", noise=g["noise"], length=K).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_accumulation_fails(dtype: str) -> None:
    working = getattr(torch, dtype)
    g = gemm(2, working)
    acc = torch.zeros(M, N, dtype=working)
    for k in range(K):
        acc = (acc.double() + g["a"][:, k : k + 1].double() * g["b"][k : k + 1].double()).to(working)
    assert not within(acc, g["trusted"], g["reference"], working=dtype, noise=g["noise"], length=K).ok


def test_tf32_products_fail_in_fp32() -> None:
    g = gemm(3, torch.float32)
    short = [(x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (g["a"], g["b"])]
    found = within(short[0] @ short[1], g["trusted"], g["reference"], working="float32", noise=g["noise"], length=K)
    assert not found.ok


def test_a_small_row_does_not_hide_behind_a_large_one() -> None:
    g = gemm(4, torch.bfloat16)
    scale = torch.ones(M, 1, dtype=torch.float64)
    scale[7] = 1e-4
    reference, trusted, noise = g["reference"] * scale, (g["trusted"].double() * scale).bfloat16(), g["noise"] * scale
    wrong = reference.bfloat16()
    wrong[7] = 0
    found = within(wrong, trusted, reference, working="bfloat16", noise=noise, length=K)
    assert (found.why, found.bad_blocks, found.bad_rows) == ("values", 1, (7, 8))
    assert not exact(wrong.double(), reference).ok


def test_one_wrong_element_at_the_end_fails() -> None:
    g = gemm(5, torch.bfloat16)
    wrong = g["reference"].bfloat16()
    wrong[-1, -1] += 0.2
    assert within(wrong, g["trusted"], g["reference"], working="bfloat16", noise=g["noise"], length=K).bad_rows == (
        M - 1,
        M,
    )


def test_either_or_is_not_the_rule() -> None:
    """X42: an absolute error of 1e-2 on values of 1e-2."""
    reference = torch.full((64, 64), 0.01, dtype=torch.float64)
    trusted = reference.bfloat16()
    assert not within(torch.full((64, 64), 0.02).bfloat16(), trusted, reference, working="bfloat16").ok


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_where_the_reference_is_finite(bad: float) -> None:
    g = gemm(6, torch.bfloat16)
    wrong = g["reference"].bfloat16()
    wrong[3, 3] = bad
    found = within(wrong, g["trusted"], g["reference"], working="bfloat16", noise=g["noise"], length=K)
    assert (found.ok, found.why, found.bad_rows, found.ratio) == (False, "nonfinite", (3, 4), math.inf)
    assert exact(wrong.double(), g["reference"]).why == "nonfinite"


def test_nonfinite_where_the_reference_is_too() -> None:
    reference = torch.full((2, 64), math.inf, dtype=torch.float64)
    reference[1] = math.nan
    right = reference.float()
    assert within(right, right, reference, working="float32").ok
    assert within(-right, right, reference, working="float32").why == "nonfinite"  # the sign of an infinity counts
    assert within(torch.zeros(2, 64), right, reference, working="float32").why == "nonfinite"


def test_overflow_of_the_stored_dtype_is_expected_and_its_edge_is_free() -> None:
    reference = torch.full((2, 64), 1e6, dtype=torch.float64)
    right = reference.half()
    assert within(right, right, reference, working="float16").ok
    assert within(torch.full((2, 64), 65504.0).half(), right, reference, working="float16").why == "nonfinite"
    edge = torch.full((1, 64), 65520.0, dtype=torch.float64)
    largest = torch.full((1, 64), 65504.0).half()
    assert within(largest, largest, edge, working="float16").ok
    assert within(edge.half(), largest, edge, working="float16").ok


def test_shape_and_dtype_come_before_values() -> None:
    g = gemm(7, torch.bfloat16)
    args = (g["trusted"], g["reference"])
    assert within(g["trusted"].T, *args, working="bfloat16").why == "shape"
    assert within(g["trusted"].float(), *args, working="bfloat16").why == "dtype"
    with pytest.raises(ValueError, match="differ in shape"):
        within(g["trusted"], g["trusted"][:1], g["reference"], working="bfloat16")


def test_vectors_are_judged_in_blocks_of_64() -> None:
    reference = torch.linspace(1, 2, 200, dtype=torch.float64)
    wrong = reference.float()
    wrong[130:140] *= 1.001
    found = within(wrong, reference.float(), reference, working="float32")
    assert (found.blocks, found.bad_blocks, found.bad_rows) == (
        4,
        2,
        (128, 200),
    )  # the rest of 8 is judged with 56 before it


def plan(seed: int, m: int, n: int, p: int, *, lossy: bool = False) -> tuple[torch.Tensor, ...]:
    """RMSNorm between two GEMMs in bf16 as a plan has it (a rounded product in between), as eager has it, and right."""
    g = torch.Generator().manual_seed(seed)
    h64 = torch.randn(m, n, generator=g, dtype=torch.float64).bfloat16().double()
    w = (torch.randn(n, p, generator=g, dtype=torch.float64) / math.sqrt(n)).bfloat16()
    gain = (1 + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)).bfloat16()
    rstd = (h64.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    right = (h64 * rstd * gain.double()) @ w.double()
    q = (h64 * gain.double() * (1.01 if lossy else 1)).bfloat16()
    mine = ((q.float() @ w.float()) * rstd.float()).bfloat16()
    normed = (h64.float() * rstd.float() * gain.float()).bfloat16()
    return mine, (normed.float() @ w.float()).bfloat16(), right


@pytest.mark.parametrize(("m", "n", "p"), [(1, 1, 1), (199, 7, 259), (3, 2, 5), (37, 131, 33)])
def test_an_honest_plan_passes_however_its_blocks_are_correlated(m: int, n: int, p: int) -> None:
    for seed in range(100):
        mine, eager, right = plan(seed, m, n, p)
        found = within(mine, eager, right, working="bfloat16", length=max(n, p))
        assert found.ok, (seed, found)


def test_a_plan_wrong_by_one_per_cent_fails_also_where_there_is_little_to_see() -> None:
    for m, n, p in [(199, 7, 259), (37, 131, 33)]:
        for seed in range(20):
            mine, eager, right = plan(seed, m, n, p, lossy=True)
            assert not within(mine, eager, right, working="bfloat16", length=max(n, p)).ok


def test_chunking_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    g = gemm(8, torch.bfloat16)
    wrong = g["reference"].bfloat16()
    wrong[10:12] *= 1.5
    whole = within(wrong, g["trusted"], g["reference"], working="bfloat16", noise=g["noise"], length=K)
    monkeypatch.setattr(numerics, "CHUNK", 3 * N)
    assert within(wrong, g["trusted"], g["reference"], working="bfloat16", noise=g["noise"], length=K) == whole


@pytest.mark.parametrize("size", [0.9, 1.0, 1.1, 1.5, 1.9])
def test_a_store_in_fp8_may_cost_a_rounding_to_fp8_but_no_10_percent(size: float) -> None:
    """The RMS of the values just below and just above a power of two, whose ulps differ by a factor of two."""
    for seed in range(4):
        g = gemm(seed, torch.bfloat16)
        right, noise = 16 * size * g["reference"], 16 * size * g["noise"]
        trusted = (16 * size * g["trusted"].float()).to(torch.float8_e4m3fn)

        def judged(
            x: torch.Tensor, t: torch.Tensor = trusted, r: torch.Tensor = right, z: torch.Tensor = noise
        ) -> bool:
            return within(x.float().to(torch.float8_e4m3fn), t, r, working="bfloat16", noise=z, length=K).ok

        assert judged(right)
        assert not judged(right * 1.1)


def test_exact_takes_another_order_and_refuses_another_formula() -> None:
    x = torch.randn(30, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = x.sum(1)
    assert exact(x.flip(1).cumsum(1)[:, -1], total).ok
    assert not exact(total * (1 + 1e-7), total).ok
    assert exact(x[:0], x[:0]).ok
    assert (
        exact(torch.full((4,), 1e-17, dtype=torch.float64), torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)).ok
        is False
    )
    assert exact(torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)).ok


def test_one_sum_that_cancels_is_judged_by_what_cancels() -> None:
    """An honest product of one element, its first factor rounded on the way: |z| says nothing about its error."""
    refused, wrong = 0, 0
    for seed in range(300):
        torch.manual_seed(seed)
        h, w = torch.randn(1, 64).double(), (torch.randn(64, 1) / 8).half().double()
        right = h @ w
        stored = [((h + 1e-9 * k).half().double() @ w).half() for k in range(2)]  # both round what is between
        noise = response(lambda x: {"z": x["h"] @ x["w"]}, {"h": h, "w": w}, {"z": right}, seed=seed)["z"]
        verdicts = [
            within(x, stored[1], right, working="float16", noise=noise, length=64).ok
            for x in (stored[0], stored[0] + 0.1)
        ]
        refused, wrong = refused + (not verdicts[0]), wrong + verdicts[1]
    assert refused <= 4  # where the response is small by chance too; 47 were refused relative to |z|
    assert wrong == 0


def test_of_a_few_elements_nobody_must_be_better_than_the_trusted_kernel() -> None:
    """A chain of three GEMMs that ends in one number: eager is off by 6 % of it, the kernel by 2 %."""
    reference = torch.tensor([[1.23e-3]], dtype=torch.float64)
    trusted, kernel = (reference + 7.6e-5).half(), (reference + 2.6e-5).half()
    assert within(kernel, trusted, reference, working="float16").ok
    assert not within((reference + 3e-4).half(), trusted, reference, working="float16").ok
    assert not within(kernel, torch.full_like(trusted, math.inf), reference, working="float16").ok
    many = reference.expand(64, 1).contiguous()
    assert not within((many + 2.6e-5).half(), (many + 7.6e-5).half(), many, working="float16").ok


def test_the_response_is_the_cost_of_rounding_the_inputs() -> None:
    g = gemm(9, torch.float32)
    size = (g["a"].double().square() @ g["b"].double().square()).sqrt()
    ratio = float(g["noise"].square().mean().sqrt() / size.square().mean().sqrt() / 2**-24)
    assert 1.2 < ratio < 1.7  # √2: both factors of every product


def test_what_cancels_whatever_the_inputs_may_leave_a_few_roundings():
    zero = torch.zeros(3, 40, dtype=torch.float64)
    trusted = torch.zeros(3, 40)

    def judged(leaves: float, noise: torch.Tensor | None = None) -> bool:
        candidate = trusted + leaves
        return numerics.within(candidate, trusted, zero, working="float32", noise=noise, length=100).ok

    assert judged(2.0**-23)
    assert not judged(2.0**-19)
    assert not judged(2.0**-23, noise=torch.full_like(zero, 1e-12))  # an output that moves has a scale of its own
    some = zero.clone()
    some[0, 0] = 1e-3  # and so has one that is not 0 everywhere
    assert not numerics.within(some.float() + 2.0**-23, some.float(), some, working="float32", length=100).ok


def left_over(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What rounding leaves of a product, of two kernels whose sums differ in the last bits, and what is right: nothing."""
    g = gemm(5, dtype)
    first, second = (g["a"].float() @ g["b"].float(), other_order(g["a"], g["b"]))
    kernel, trusted = ((x - x.to(dtype).float()).to(dtype) for x in (second, first))
    return kernel, trusted, torch.zeros_like(first, dtype=torch.float64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("few", [False, True])
def test_what_a_rounding_leaves_is_held_against_what_it_leaves_the_trusted_kernel(dtype: str, few: bool) -> None:
    kernel, trusted, zero = (x[:1, :40] if few else x for x in left_over(getattr(torch, dtype)))
    assert float(trusted.abs().max()) > 2.0**-20
    turned = kernel.clone()
    where = divmod(int(turned.abs().argmax()), turned.shape[1])
    turned[where] *= -1  # the last bits of a sum decide which way a number half between two is rounded
    for fine in (kernel, turned, torch.zeros_like(trusted)):  # a kernel may round less than the trusted one
        assert within(fine, trusted, zero, working=dtype).ok
    wrong_anywhere = [-kernel, kernel * 2.5, kernel.roll(1, 1), torch.full_like(kernel, 0.01)]
    for wrong in wrong_anywhere if few else [*wrong_anywhere, kernel * 2, kernel.abs()]:
        assert not within(wrong, trusted, zero, working=dtype).ok
    assert not within(kernel, torch.zeros_like(trusted), zero, working=dtype).ok  # the trusted kernel leaves nothing


def test_what_is_said_to_be_too_large_is() -> None:
    g = gemm(2, torch.bfloat16)
    one = g["trusted"].clone()
    one[3, 4] += 1
    assert within(one, g["trusted"], g["reference"], working="bfloat16").excess.startswith("largest error ")
    everywhere = g["reference"] * (1 + 2.0**-8)  # no element alone is too far off
    found = within(everywhere.bfloat16(), g["reference"].bfloat16(), g["reference"], working="bfloat16")
    assert not found.ok
    assert found.max_error <= found.max_allowed
    error, allowed = (float(x) for x in re.findall(r"\d[\d.e+-]*", found.excess))
    assert found.excess.startswith("RMS error ")
    assert error > allowed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_rounding_the_reference_is_never_too_far_however_small_it_is(dtype: str) -> None:
    kind = getattr(torch, dtype)
    for power in (0, -4, -7, -12, -15, -17, -20, -23):
        generator = torch.Generator().manual_seed(-power)
        reference = torch.randn(64, 66, generator=generator, dtype=torch.float64) * 2.0**power
        reference[:32] *= 2.0**-5  # rows of the same output that are smaller still
        stored = reference.to(kind)
        found = within(stored, stored, reference, working="float16" if dtype == "float16" else "bfloat16")
        assert found.ok, (power, found.ratio)


def test_below_the_normal_numbers_a_wrong_result_is_still_wrong() -> None:
    reference = torch.randn(64, 130, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1e-5
    good = reference.half()
    assert within(good, good, reference, working="float16").ok
    assert not within((reference * 1.05).half(), good, reference, working="float16").ok
    assert not within(torch.zeros_like(good), torch.full_like(good, math.inf), reference, working="float16").ok


def test_a_kernel_in_fp32_that_is_as_wrong_as_eager_passes() -> None:
    generator = torch.Generator().manual_seed(3)
    reference = torch.rand(64, 130, generator=generator, dtype=torch.float64)
    signs = torch.randn(64, 130, generator=generator, dtype=torch.float64)
    trusted = (reference * (1 + signs * 2.0**-21)).float()  # a few roundings of a logit, seen through exp
    assert within((reference * (1 + signs * 1.05 * 2.0**-21)).float(), trusted, reference, working="float32").ok
    assert not within((reference * (1 + signs * 2.0**-18)).float(), trusted, reference, working="float32").ok
    assert not within(reference.half().float(), torch.full_like(trusted, math.inf), reference, working="float32").ok
