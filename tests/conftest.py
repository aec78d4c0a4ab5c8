"""What test files of several folders share, importable by name: `authoring_support`, `kept_support`,
`launch_support`, `layer_support`, `triton_programs`, and `tuning_support` with its backends.

Tests are no packages (`--import-mode=importlib`), so the folders of these modules are put on the path here, once.
Property tests draw the same examples in every run, so that a failure can be repeated.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
from pathlib import Path

import pytest

SHARED = ("agent/authoring", "agent/keeping", "coda/backends/finishing", "coda/backends/triton", "coda/tuning")

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in SHARED]

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # as a shell starts what it runs in the background: Ctrl-C is tested here
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("hypothesis") is not None:  # not where only the GPU tests are run
    from hypothesis import settings

    settings.register_profile("repeatable", derandomize=True)
    settings.load_profile("repeatable")


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No variable of ours, and all folders of the user below tmp_path."""
    for name in list(os.environ):
        if name.startswith("CODA_"):
            monkeypatch.delenv(name)
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return tmp_path


@pytest.fixture
def the_same_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's seeds are fresh in use; fixed here, so that a run that fails can be repeated."""
    seeds = itertools.count(20261129)
    for module in ("judge", "inputs"):
        monkeypatch.setattr(f"agent.verify.{module}.run_seed", lambda: next(seeds))
