"""What a peer compiles stays compiled, however many sizes and settings one process measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from coda.bench import candidates
from coda.bench.adapters import quack
from coda.bench.candidates import Setting

pytestmark = pytest.mark.interp
SIZES = range(2, 14)
"""More than Dynamo compiles of one code object."""


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows of the first input of every graph that is compiled."""
    seen: list[int] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        seen.append(int(next(x for x in examples if isinstance(x, torch.Tensor)).shape[0]))
        return module.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    with torch._dynamo.config.patch(recompile_limit=8):  # packages raise it for the whole process
        yield seen
    torch._dynamo.reset()


def _baseline(x: Any, *, factor: float = 2.0) -> dict[str, Any]:
    return {"y": x * factor + 1}


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}], ids=["rest", "baseline"])
def test_every_setting_is_compiled(compilations: list[int], options: dict[str, Any]) -> None:
    assert len(SIZES) > torch._dynamo.config.recompile_limit
    for rows in SIZES:
        run = candidates.compiled(_baseline, **options)
        x = torch.ones(rows, 3)
        for _ in range(2):
            assert torch.equal(run(x=x, factor=3.0)["y"], x * 3 + 1)
            assert torch.equal(run(x=x)["y"], x * 2 + 1)
    assert compilations == [rows for rows in SIZES for _ in range(2)]


def test_a_function_made_in_place_is_compiled_for_every_setting(compilations: list[int]) -> None:
    for rows in SIZES:
        run = candidates.rest(lambda x, added=rows: x + added)
        assert torch.equal(run(torch.zeros(rows)), torch.full((rows,), float(rows)))
    assert compilations == list(SIZES)


def test_quack_compiles_what_is_around_once_per_setting(
    compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    configurations = tuple((f"quack[{at}]", {"at": at}, object()) for at in range(5))
    monkeypatch.setattr(quack, "_configurations", lambda: configurations)
    monkeypatch.setattr(quack, "Fused", lambda config: config)
    seen: list[Any] = []

    def kernel(fused: Any, inputs: Any, around: Callable[..., Any]) -> dict[str, Any]:
        seen.append(fused)
        return around(inputs["x"])  # type: ignore[no-any-return]

    build = quack._each(kernel, around=_baseline, note="said")
    for rows in SIZES:
        inputs = {"x": torch.ones(rows, 3)}
        made = build(Setting("task", _baseline, inputs))
        assert [(name, c.config, c.note) for name, c in made.items()] == [(n, o, "said") for n, o, _ in configurations]
        seen.clear()
        for candidate in made.values():
            assert torch.equal(candidate(inputs)["y"], torch.full((rows, 3), 3.0))
        assert seen == [config for _, _, config in configurations]
    assert compilations == list(SIZES)
