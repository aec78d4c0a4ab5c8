"""The steps of a sweep's process that need no GPU to be told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agent.verify import bench_worker

pytestmark = pytest.mark.interp

RACE = {"step": "race", "rounds": 9, "protocol": "default"}


def test_a_race_in_a_process_where_nothing_is_ready_is_the_machines_fault() -> None:
    answer = bench_worker.work(dict(RACE))
    assert answer["status"] == "INFRA_ERROR"
    assert "nothing to race" in answer["reason"]
    assert answer["record"] is None


@pytest.mark.parametrize("where", ["CudaClock", "device_copy"])
def test_memory_that_is_full_before_the_race_is_the_machines_fault(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench_worker, "CudaClock", lambda: None)
    monkeypatch.setattr(bench_worker, where, full)
    monkeypatch.setattr(bench_worker, "_READY", [object()])
    answer = bench_worker.work(dict(RACE))
    assert (answer["status"], answer["record"]) == ("INFRA_ERROR", None)
    assert "out of memory" in answer["reason"]
