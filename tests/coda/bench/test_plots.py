"""Pictures: every one is drawn in both forms, shows what the records hold, and is the same for the same records."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import struct
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from coda.bench import plots
from coda.bench.record import BenchRecord, Compared, Measured
from coda.bench.roofline import Floor

pytestmark = [pytest.mark.null, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
pytest.importorskip("matplotlib")


def timed(name: str, seconds: float, author: str = "tool", peer: str = "") -> Measured:
    rng = random.Random(name)
    samples = tuple(seconds * (1 + rng.gauss(0, 0.004)) for _ in range(9))
    return Measured(name, author, samples, seconds, seconds * 0.99, seconds * 1.01, seconds, seconds, 2e-5, peer=peer)


def record(task: str, size: int) -> BenchRecord:
    t = 2 * size**3 / 750e12
    measured = (
        timed("triton", t * 1.05, "candidate"),
        timed("compile", t * 1.2, peer="compile"),
        timed("quack[128x256 c21]", t * 1.04, "human", "quack"),
        timed("cublas", t),
        timed("triton, empty epilogue", t * 1.01, "project"),
    )
    compared = (
        Compared("compile", 0.875, 0.87, 0.88, "faster"),
        Compared("quack", 1.01, 1.005, 1.02, "slower", "quack[128x256 c21]"),
    )
    return BenchRecord(
        task=task, program_digest="d", dims={"M": size, "N": size, "K": size}, dtype="bfloat16", verified=True,
        kernel="triton", measured=measured, compared=compared, noise_floor=0.005,
        floor=Floor(t, "compute", 2 * size**3, 6 * size**2), bandwidth=4.2e12, gemm_flops=750e12, suspicion=None,
        absent={}, environment={"gpu": "NVIDIA Test"}, protocol={"name": "default"},
    )  # fmt: skip


RECORDS = [record(task, size) for task in ("rms_scale", "swiglu_backward") for size in (1024, 4096)]


def test_every_picture_in_both_forms(tmp_path: pathlib.Path) -> None:
    written = plots.draw(RECORDS, tmp_path / "new")
    assert {p.name for p in written} == {f"{n}.{k}" for n in ("times", "roofline", "overhead") for k in ("svg", "png")}
    for path in written:
        if path.suffix == ".png":
            data = path.read_bytes()
            width, height = struct.unpack(">II", data[16:24])
            assert data[:4] == b"\x89PNG"
            assert min(width, height) > 200
        else:
            drawn = ElementTree.parse(path).getroot()
            assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) > 20


def test_a_picture_is_the_same_for_the_same_records(tmp_path: pathlib.Path) -> None:
    first = {p.name: p.read_bytes() for p in plots.draw(RECORDS, tmp_path / "a")}
    again = {p.name: p.read_bytes() for p in plots.draw(list(reversed(RECORDS)), tmp_path / "b")}
    assert first == again


def test_every_implementation_has_a_colour_and_a_marker_of_its_own() -> None:
    styles = [*plots.STYLES.values(), plots.OTHER]
    assert len({colour for colour, _ in styles}) == len({marker for _, marker in styles}) == len(styles)


def test_drawing_leaves_the_process_as_it_was(tmp_path: pathlib.Path) -> None:
    code = f"""
import sys, pathlib, matplotlib
sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}]
from test_plots import RECORDS
from coda.bench import plots
matplotlib.use("svg")
matplotlib.rcParams["font.size"] = 17
before = dict(matplotlib.rcParams)
plots.draw(RECORDS, pathlib.Path({str(tmp_path)!r}))
changed = [name for name, value in before.items() if matplotlib.rcParams[name] != value]
assert not changed, changed
assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_times_shows_every_peer_with_its_interval_and_the_noise() -> None:
    figure = plots.times(RECORDS)
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == [f"{r.task}  {plots.shape(r)}" for r in RECORDS]
    _, labels = axes.get_legend_handles_labels()
    assert set(labels) == {"compile", "quack"}
    spots = sorted({round(float(c.lines[0].get_xdata()[0]), 3) for c in axes.containers})
    assert spots == [round(1 / 1.01, 3), round(1 / 0.875, 3)]


def test_overhead_is_over_the_gemm_of_the_same_run() -> None:
    found = {who: plots._above(RECORDS[0], who) for who in ("kernel", "compile", "quack", "liger", "empty epilogue")}
    assert found["liger"] is None
    assert {k: round(v) for k, v in found.items() if v is not None} == {
        "kernel": 5,
        "compile": 20,
        "quack": 4,
        "empty epilogue": 1,
    }


def test_what_was_not_measured_is_not_drawn(tmp_path: pathlib.Path) -> None:
    alone = dataclasses.replace(RECORDS[0], compared=(), gemm_flops=None)
    assert plots.draw([alone], tmp_path) == []
    many = [dataclasses.replace(RECORDS[0], dims={"M": at}) for at in range(plots.MOST_ROWS + 1)]
    names = {p.stem for p in plots.draw(many, tmp_path)}
    assert {"times-1", "times-2"} <= names
