"""The finishing kernel in Triton's interpreter, fed with partials that are laid out as the tiles lay them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("coda.backends.cutedsl", exc_type=ImportError)

pytestmark = pytest.mark.interp

CHILD = pathlib.Path(__file__).with_name("finisher_in_interpreter.py")


def test_partials_of_ragged_tiles_become_the_outputs(tmp_path):
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "CODA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    run = subprocess.run(
        [sys.executable, str(CHILD)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    errors = json.loads(run.stdout.splitlines()[-1])
    assert set(errors) >= {
        "residual_rms.rstd",
        "residual_layernorm.rstd",
        "many slots.shift",
        "softcap_cross_entropy.loss",
        "rms_backward.dgamma",
        "special.lse",
        "copies.r2",
    }
    assert all(e < 3e-6 for e in errors.values()), errors
