"""Buffers and checks for tests of kernels: what must be written, what must not be touched.

poisoned    a tensor full of NaN (ints: a marker), so that an element nobody wrote shows
Guarded     a tensor inside a larger poisoned buffer; `intact()` says whether anything around it was written
unchanged   a context in which tensors must keep every byte
on_tensor_cores   a product as the vendor's GEMM accumulates it, for results that kernels are held against
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

INT_POISON = -(2**31) + 11
FILLED = 264 * 128 * 256
"""Elements of a product for which cuBLAS has no reason to split sums: two of its largest tiles for each of an H200's 132
multiprocessors."""
REPEATED = 1 << 29
"""Elements of `a` at most, with its rows repeated."""


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """A tensor in which every element shows that it was not written."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=torch.float32, device=device).to(dtype)
    return torch.full(shape, INT_POISON, device=device).to(dtype)


class Guarded:
    """`tensor` (contiguous) with at least `margin` untouchable elements before and after it."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu", margin: int = 1024
    ) -> None:
        count = 1
        for length in shape:
            count *= length
        self._buffer = poisoned((count + 2 * margin,), dtype, device)
        self._before = self._buffer[:margin].clone(), self._buffer[margin + count :].clone()
        self._count, self._margin = count, margin
        self.tensor = self._buffer[margin : margin + count].view(shape)

    def intact(self) -> bool:
        """Whether nothing outside the tensor was written."""
        now = self._buffer[: self._margin], self._buffer[self._margin + self._count :]
        return all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in zip(now, self._before, strict=True))


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """Every byte of a tensor, NaN included, in a form that `torch.equal` compares."""
    flat = torch.empty(t.numel(), dtype=t.dtype, device=t.device)
    # a tensor of one element may keep a stride that no view of its bytes can have: copying is the sure way
    return flat.copy_(t.detach().reshape(-1)).view(torch.uint8)


def on_tensor_cores(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """fp32 accumulators (M, N) of matrices on a GPU, as cuBLAS makes them. A tensor core drops the low bits of every addition, in
    one direction, which no product in full precision shows.

    Where a product has few tiles, cuBLAS adds slices of K separately, and short sums drop less than the whole ones of a kernel:
    its rows are repeated until the tiles fill a GPU, or `a` takes 1 GB.
    """
    if a.dtype is torch.float32:
        return a @ b
    (rows, depth), columns = a.shape, b.shape[1]
    times = 1
    if rows and columns and depth:
        times = min(FILLED // (rows * columns), REPEATED // (rows * depth))
    if times <= 1:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.repeat(times, 1), b, out_dtype=torch.float32)[:rows].clone()


@contextmanager
def unchanged(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Raise `AssertionError` if the block changes a byte of any of the tensors."""
    kept = [(t, as_bytes(t).clone()) for t in tensors]
    yield
    for position, (t, before) in enumerate(kept):
        assert torch.equal(as_bytes(t), before), f"input {position} of shape {tuple(t.shape)} was written"
