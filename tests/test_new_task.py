"""A new task is one file: put into a copy of the package, in a folder of the test, it is found by lint, list, show, the prompt, compare,
the leaderboard and the documents, without another edit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.verify import tracer
from coda.kernel import from_json

pytestmark = pytest.mark.interp

ROOT = Path(__file__).parents[1]
ID = "column_centred"
TASK = '''"""Task: a product of which every element loses its row's offset and is scaled by its column."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task import Input, Result, Shape, Task


def reference(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    offset: Tensor,  # (M,)
    scale: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """Unfused, in fp32 or fp64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return {"y": (x.to(wide) @ w.to(wide) - offset.to(wide)[:, None]) * scale.to(wide)}


def baseline(
    x: Tensor,  # (M, K)
    w: Tensor,  # (K, N)
    offset: Tensor,  # (M,)
    scale: Tensor,  # (N,)
) -> dict[str, Tensor]:
    """The same in the working dtype."""
    return {"y": ((x @ w - offset[:, None]) * scale).to(x.dtype)}


TASK = Task(
    id="column_centred",
    title="GEMM with a row offset and a column scale",
    aliases=("centred product", "offset and scale"),
    family="rows",
    difficulty=1,
    inputs=(
        Input("x", ("M", "K"), role="a"),
        Input("w", ("K", "N"), draw="weight", role="b"),
        Input("offset", ("M",), dtype="float32"),
        Input("scale", ("N",), draw="gain"),
    ),
    outputs=(Result("y", ("M", "N")),),
    reference=reference,
    baseline=baseline,
    shapes=(
        Shape("smoke", {"M": 32, "N": 64, "K": 48}, "one tile"),
        Shape("ragged", {"M": 37, "N": 131, "K": 65}, "every size odd"),
        Shape("ragged", {"M": 129, "N": 257, "K": 64}, "one past a tile both ways"),
        Shape("benchmark", {"M": 4096, "N": 4096, "K": 4096}, "a layer"),
    ),
    needs=("ColVector", "RowVector", "row-scale", "column-factor"),
    description="""\\\\
y[i, j] = scale[j]·(Σ_k x[i, k]·w[k, j] - offset[i])

x is (M, K), w is (K, N), offset is (M,) and fp32, scale is (N,) in the dtype of x. y has the dtype of x, rounded once.""",
)
'''.replace("\\\\\\\\", "\\\\")
KERNEL = '''"""The offset and the scale are local to an element."""

import coda
from coda.primitives import ColVector, RowVector


@coda.epilogue
def column_centred(
    acc,  # (M, N)
    offset: ColVector,  # (M,)
    scale: RowVector,  # (N,)
):
    return {"y": (acc - offset) * scale}


kernel = column_centred
'''


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages in a folder of their own, with one file more, and a kernel of that task on the shelf."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "agent", folder / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("coda", "examples_curated", "cli.py"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "authored_kernels").mkdir()
    shutil.copy(ROOT / "authored_kernels" / "__init__.py", folder / "authored_kernels")
    (folder / "agent" / "tasks" / f"{ID}.py").write_text(TASK, encoding="utf-8")
    kept = folder / "authored_kernels" / ID / "somebody"
    kept.mkdir(parents=True)
    traced = tracer.trace(KERNEL)
    assert traced.program_json is not None, traced.error
    (kept / "kernel.py").write_text(KERNEL, encoding="utf-8")
    (kept / "program.json").write_text(traced.program_json, encoding="utf-8")
    known = {"task": ID, "author": "human", "program_digest": from_json(traced.program_json).program.digest}
    (kept / "provenance.json").write_text(json.dumps(known), encoding="utf-8")
    return folder


def run(copy: Path, *args: str, code: str = "import cli; cli.main()") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CODA_", "XDG_"))}
    env |= {"PYTHONPATH": str(copy), "CODA_AGENT_HOME": str(copy / "home"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=copy, env=env, capture_output=True, text=True, timeout=240, check=False
    )


def data(copy: Path, *args: str) -> dict[str, Any]:
    done = run(copy, *args, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["data"]
    return found


def test_it_is_listed_and_found_by_every_name(copy: Path) -> None:
    assert (
        "agent"
        in run(copy, code=f"import agent; assert agent.__file__.startswith({str(copy)!r}); print('agent')").stdout
    )
    (row,) = [task for task in data(copy, "list", "tasks")["tasks"] if task["id"] == ID]
    assert (row["family"], row["aliases"]) == ("rows", ["centred product", "offset and scale"])
    shown = data(copy, "show", "Centred product")["task"]
    assert shown["path"] == str(copy / "agent" / "tasks" / f"{ID}.py")
    assert ID in run(copy, "show", "column_centerd").stderr, "and a wrong name brings it as a near one"


def test_its_lint_refuses_every_wrong_program(copy: Path) -> None:
    found = data(copy, "lint", ID)
    assert found["status"] == "PASS"
    assert found["killed"] == found["tried"] > 5


def test_its_prompt_is_complete_and_teaches_what_it_needs(copy: Path) -> None:
    prompt = data(copy, "author", "offset and scale", "--dry-run")
    text = json.dumps(prompt, ensure_ascii=False)
    for piece in ("GEMM with a row offset and a column scale", "offset: ColVector", "scale: RowVector", "`y`"):
        assert piece in text, piece
    assert prompt["untaught"] == []


def test_it_is_compared_verified_and_on_the_leaderboard(copy: Path, tmp_path: Path) -> None:
    found = data(copy, "compare", ID)
    assert [k["id"] for k in found["kernels"]] == [f"{ID}/somebody"]
    assert f"{ID}/somebody: no GPU benchmark of this kernel is recorded" in found["not_measured"]
    assert ID in {row["task"] for row in data(copy, "list", "kernels")["kernels"]}
    done = run(copy, "compare", "--all", "--html", str(tmp_path / "out.html"))
    assert done.returncode == 0, done.stderr
    assert ID in (tmp_path / "out.html").read_text(encoding="utf-8")
    (row,) = data(copy, "tune", ID, "--dry-run", "--backend", "triton")["jobs"]
    assert row["program"] == ID


def test_the_documents_have_it_after_make_fix(copy: Path) -> None:
    """The same generator as in the Makefile, on the copy."""
    targets = [word for line in (ROOT / "Makefile").read_text().splitlines() if "cog -r" in line for word in line.split() if word.endswith(".md")]  # fmt: skip
    assert {"README.md", "agent/tasks/README.md", "authored_kernels/README.md"} <= set(targets)
    for name in targets:
        (copy / name).parent.mkdir(exist_ok=True)
        if not (copy / name).exists():
            shutil.copy(ROOT / name, copy / name)
    written = [name for name in targets if not name.startswith("examples_curated")]
    code = "import sys; from cogapp import Cog; sys.exit(Cog().main(['cog', '-r', '-P', *sys.argv[1:]]))"
    done = run(copy, *written, code=code)
    assert done.returncode == 0, done.stderr
    assert (
        f"| [`{ID}`]({ID}.py) | GEMM with a row offset and a column scale | rows | 1 |"
        in (copy / "agent/tasks/README.md").read_text()
    )
    assert f"{ID}/somebody" in (copy / "authored_kernels/README.md").read_text()


def test_its_kernel_is_right_in_every_way(copy: Path) -> None:
    """The judge proves a kernel of it from scratch: everything it needs to know is in the one file."""
    (copy / "mine.py").write_text(KERNEL, encoding="utf-8")
    done = run(copy, "verify", "mine.py", "--task", ID, "--no-gpu", "--backend", "triton", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["data"]["verdict"] == "PASS"
