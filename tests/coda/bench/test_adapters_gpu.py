"""Every adapter on a GPU: its package's kernels run and compute the task, at a size that no tile divides in every direction."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from agent import task as tasks
from agent.verify import entrants
from coda.bench import peers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # other packages' own
]

SIZES = {"M": 520, "N": 1024, "K": 512, "P": 768, "V": 1536}


@pytest.mark.parametrize(("peer", "task_id"), sorted(peers.ADAPTERS))
def test_it_computes_the_task(peer: str, task_id: str) -> None:
    if importlib.util.find_spec(peers.PEERS[peer].package) is None:
        pytest.skip(f"{peers.PEERS[peer].distribution} is not installed")
    task = tasks.load(task_id)
    dims = {name: SIZES[name] for name in task.shapes[0].dims}
    sets = entrants.sets_of(task, dims, seed=11)
    check = entrants.checker(task, dims, sets, 11)
    roles = {i.role: i.name for i in task.inputs}
    a_b = (roles["a"], roles["b"]) if {"a", "b"} <= roles.keys() else None
    setting = peers.Setting(task_id, task.baseline, sets[0], (), a_b)
    with torch.no_grad():
        candidates = peers.build(peer, setting)
        label = "quack[128x128pp c21]" if "quack[128x128pp c21]" in candidates else next(iter(candidates))
        candidate = candidates[label]
        for at in (0, 1):
            assert check.peer(at, candidate(sets[at])) is None
