"""Where a program runs and how: `Problem` (sizes, dtypes, strides, architecture) and `Schedule` (tiles, warps, stages).

    TensorSpec   what a kernel is compiled for of one tensor: dtype, stride class, alignment
    Problem      frozen and hashable: the key of compiled and tuned kernels, with the program's digest and a Schedule
    Schedule     how to run a program, never what it computes

Neither imports torch: dtypes are names ("bfloat16").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from coda.errors import BadArgument, BadSchedule, near

if TYPE_CHECKING:
    from coda.program import EpilogueProgram

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}
"""Bytes per element of every dtype that a tensor may have."""

GEMM_DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Dtypes of `a` and `b`."""


def compute_dtype(dtype: str) -> str:
    """What an epilogue computes in where `a` has this dtype."""
    return "float64" if dtype == "float64" else "float32"


@dataclass(frozen=True)
class TensorSpec:
    """What a kernel is compiled for of one tensor."""

    dtype: str
    layout: Literal["row", "col", "any"] = "row"
    """`row`: the last dimension is contiguous; `col`: the first one is; vectors are `row` or `any`."""
    aligned: bool = True
    """Base address and every outer stride are multiples of 16 bytes."""


@dataclass(frozen=True)
class Problem:
    """One call's sizes, dtypes, stride classes and architecture. A pointwise program has `k == 0`."""

    m: int
    n: int
    k: int
    dtype: str
    """Of `a` (pointwise: of the first tile)."""
    tensors: tuple[tuple[str, TensorSpec], ...] = ()
    """Every input and output by name, sorted by name: `a`, `b`, operands; outputs as `out.NAME`."""
    arch: str | None = None
    """ "sm_90", or None for the CPU."""

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 0:
            raise BadArgument("Problem: sizes", got=f"{self.m}×{self.n}×{self.k}", expected="0 or more each")
        if self.dtype not in ITEM_BYTES:
            raise BadArgument("Problem: dtype", got=repr(self.dtype), expected=", ".join(GEMM_DTYPES))

    @property
    def compute(self) -> str:
        """The compute dtype."""
        return compute_dtype(self.dtype)

    def spec(self, name: str) -> TensorSpec:
        """The spec of one tensor: `a`, `b`, an operand, or `out.NAME`."""
        return dict(self.tensors)[name]

    @classmethod
    def example(
        cls,
        program: EpilogueProgram,
        *,
        m: int = 4096,
        n: int = 4096,
        k: int = 4096,
        dtype: str = "bfloat16",
        dtypes: Mapping[str, str] | None = None,
        arch: str | None = "sm_90",
    ) -> Problem:
        """A problem with contiguous, aligned tensors: tiles in `dtype`, float vectors in fp32, int vectors in int64.

        `dtypes` overrides by name. Raises `BadArgument` for a dtype that does not exist.
        """
        specs: dict[str, TensorSpec] = {}
        if program.kind == "epilogue":
            specs["a"] = TensorSpec(dtype, aligned=(k * ITEM_BYTES.get(dtype, 1)) % 16 == 0)
            specs["b"] = TensorSpec(dtype, aligned=(n * ITEM_BYTES.get(dtype, 1)) % 16 == 0)
        for operand in program.operands:
            if operand.kind == "scalar":
                continue
            default = "int64" if operand.dtype == "int" else dtype if operand.kind == "tile" else compute_dtype(dtype)
            name_dtype = (dtypes or {}).get(operand.name, default)
            outer = int(operand.width * n) * ITEM_BYTES.get(name_dtype, 1) if operand.kind == "tile" else 0
            specs[operand.name] = TensorSpec(name_dtype, aligned=outer % 16 == 0)
        for output in program.outputs:
            name_dtype = (dtypes or {}).get(f"out.{output.name}", program.output_dtype(output.name, dtype))
            kind = program.nodes[output.node].type
            outer = kind.columns(n) * ITEM_BYTES.get(name_dtype, 1) if kind.kind in ("tile", "segment") else 0
            specs[f"out.{output.name}"] = TensorSpec(name_dtype, aligned=outer % 16 == 0)
        for name, spec in specs.items():
            if spec.dtype not in ITEM_BYTES:
                raise BadArgument(
                    f"Problem.example: dtype of {name}", got=repr(spec.dtype), hint=near(spec.dtype, ITEM_BYTES)
                )
        return cls(m, n, 0 if program.kind == "pointwise" else k, dtype, tuple(sorted(specs.items())), arch)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "triton": ("tile_m", "tile_n", "tile_k", "warps", "stages", "group_m", "persistent", "tma", "split", "split_k"),
    "cutedsl": ("tile_m", "tile_n", "group_m", "cluster_m", "cluster_n", "pingpong"),
}
"""Fields of a `Schedule` that a backend knows; it works out the rest."""


@dataclass(frozen=True)
class Schedule:
    """How to run a program. Fields that a backend does not know must keep their default."""

    backend: str = "triton"
    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    warps: int = 8
    stages: int = 3
    group_m: int = 8
    """Rows of tiles that run close together, for reuse in L2."""
    persistent: bool = True
    """One program per SM walks over the tiles; else one program per tile."""
    tma: bool = True
    """A and B through tensor descriptors where their strides allow it."""
    split: int = 1
    """The accumulator is cut into so many column parts before the epilogue, to save registers."""
    split_k: int = 1
    """The contraction is cut into so many parts, summed in a fixed order."""
    cluster_m: int = 1
    cluster_n: int = 1
    pingpong: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str) or not self.backend:
            raise BadSchedule("Schedule.backend", got=repr(self.backend), expected=", ".join(CHOICES))
        for name in (
            "tile_m",
            "tile_n",
            "tile_k",
            "warps",
            "stages",
            "group_m",
            "split",
            "split_k",
            "cluster_m",
            "cluster_n",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
                raise BadSchedule(f"Schedule.{name}", got=repr(value), expected="an integer from 1 to 1024")
        for name in ("persistent", "tma", "pingpong"):
            if not isinstance(getattr(self, name), bool):
                raise BadSchedule(f"Schedule.{name}", got=repr(getattr(self, name)), expected="true or false")
        if self.warps not in (1, 2, 4, 8, 16):
            raise BadSchedule("Schedule.warps", got=self.warps, expected="1, 2, 4, 8 or 16")

    def check_for(self, backend: str) -> None:
        """Raise `BadSchedule` where it is another backend's, or says something of a field that its backend does not know."""
        if self.backend != backend:
            raise BadSchedule("a schedule of another backend", got=self.backend, expected=backend)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("backend", *CHOICES[backend]) and value != field.default:
                raise BadSchedule(
                    f"Schedule.{field.name} is not a choice of {backend}",
                    got=value,
                    expected=f"{field.default}",
                    hint=f"{backend} takes {', '.join(CHOICES[backend])}",
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schedule:
        """Strict: an unknown field is a `BadSchedule` that names near ones."""
        if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
            raise BadSchedule("a schedule", got=f"{data!r:.80}", expected="an object of fields by name")
        known = {f.name for f in dataclasses.fields(cls)}
        for name in data:
            if name not in known:
                raise BadSchedule(
                    "Schedule: unknown field", got=repr(name), expected=", ".join(sorted(known)), hint=near(name, known)
                )
        return cls(**data)
