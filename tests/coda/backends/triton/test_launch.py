"""What a launch of the tile kernel is asked before Triton sees it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from coda.backends.triton import launch  # noqa: E402

pytestmark = pytest.mark.interp


def test_aliasing() -> None:
    x, y, z = torch.zeros(4), torch.zeros(4), torch.zeros(4)
    shares = launch.aliasing(["out.p", "out.q"], ["x", "y"])
    assert not shares({"x": x, "y": y, "out.p": z, "out.q": z})
    assert shares({"x": x, "y": y, "out.p": z, "out.q": y})
    assert not launch.aliasing(["out.p"], [])({"out.p": z})
