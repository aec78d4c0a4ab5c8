"""The real clock: device time without the host's, cold caches, a floor that the plain GEMM defines."""

from __future__ import annotations

import time

import pytest
import torch

from coda.bench.roofline import copy_bandwidth, device_copy
from coda.bench.timing import CudaClock, measure

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_host_work_is_not_timed() -> None:
    x = torch.randn(1024, 1024, device="cuda")

    def slow_host() -> None:
        x.mul_(1.0)
        time.sleep(3e-3)
        x.mul_(1.0)

    clock = CudaClock()
    clock.time(slow_host)
    sample = clock.time(slow_host)
    assert sample.host_s > 3e-3
    assert sample.device_s < 1e-3


def test_the_same_kernel_twice_and_half_the_work() -> None:
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    half = a[:1024]
    timings = measure(
        {"whole": lambda at: a @ a, "again": lambda at: a @ a, "half": lambda at: half @ a}, CudaClock(), rounds=21
    )
    assert timings.compare("again", "whole").word == "no difference"
    assert timings.compare("half", "whole").word == "faster"


def test_bandwidth_is_plausible() -> None:
    copy, traffic = device_copy(256)
    assert 1e11 < copy_bandwidth(CudaClock(), copy, traffic) < 2e13
