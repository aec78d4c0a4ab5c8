"""What the judge found, as records: `Status`, `GateRecord`, `Verdict`.

    Status      the words a gate or a verdict may say, the only ones
    GateRecord  one gate: its word, why, the evidence, how long it took
    Verdict     all gates of one candidate on one task, in order, and the word that follows from them

A verdict is made by `agent/verify/judge.py` and read by the loop, the store, review, promote and compare. Its rules are
validators, so a file that breaks them cannot be loaded: a gate that ran left evidence; a gate that did not run is never a
pass; the first failing gate decides; speed only after numerics passed. Records never hold a candidate's tensors.
"""

from __future__ import annotations

import datetime
import enum
import platform
from importlib import metadata
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator


class Status(enum.StrEnum):
    """What a gate says. The first group is good, `NOT_RUN` is neither good nor bad, every other word refuses."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    NO_DIFFERENCE = "NO_DIFFERENCE"
    """Of `bench`: right, and as fast as the best peer within the noise."""
    SLOWER = "SLOWER"
    """Of `bench`: right, and slower than the best peer."""
    NOT_RUN = "NOT_RUN"
    COMPILE_ERROR = "COMPILE_ERROR"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    TIMEOUT = "TIMEOUT"
    CRASH = "CRASH"
    WRONG_SHAPE = "WRONG_SHAPE"
    WRONG_DTYPE = "WRONG_DTYPE"
    WRONG_DEVICE_OR_STRIDE = "WRONG_DEVICE_OR_STRIDE"
    WRONG_VALUES = "WRONG_VALUES"
    NONFINITE = "NONFINITE"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    INPUT_MUTATED = "INPUT_MUTATED"
    POLICY = "POLICY"
    TAMPERED = "TAMPERED"
    SUSPECT = "SUSPECT"
    """Needs a person: faster than physics allows, or something else that cannot be true."""
    INVALID_SPEC = "INVALID_SPEC"
    """The task is at fault, not the candidate."""
    INFRA_ERROR = "INFRA_ERROR"
    """The machine is at fault, not the candidate. Never a pass."""

    @property
    def good(self) -> bool:
        """Whether the gate was passed."""
        return self in (Status.PASS, Status.NO_DIFFERENCE, Status.SLOWER)

    @property
    def refuses(self) -> bool:
        """Whether it stops the candidate here."""
        return not self.good and self is not Status.NOT_RUN


GATES = ("static", "trace", "algebra", "compile", "numerics", "bench")
"""In order."""
REQUIRED = GATES[:-1]
"""What a pass needs. `bench` needs a GPU and adds the word about speed."""

GateName = Literal["static", "trace", "algebra", "compile", "numerics", "bench"]


class Record(BaseModel):
    """Frozen and strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class GateRecord(Record):
    """One gate's word with its evidence."""

    name: GateName
    status: Status
    reason: str = ""
    """One or two sentences. Empty only for a pass."""
    evidence: dict[str, JsonValue] = Field(default_factory=dict)
    """What was measured: numbers, cases, seeds, resources. Empty exactly when the gate did not run."""
    seconds: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _positive_evidence(self) -> Self:
        if self.status is Status.NOT_RUN:
            if self.evidence or self.seconds:
                raise ValueError(f"{self.name}: a gate that did not run has no evidence and took no time")
        elif not self.evidence:
            raise ValueError(f"{self.name}: {self.status} without evidence")
        if self.status is not Status.PASS and not self.reason:
            raise ValueError(f"{self.name}: {self.status} without a reason")
        if self.status in (Status.NO_DIFFERENCE, Status.SLOWER) and self.name != "bench":
            raise ValueError(f"{self.name}: {self.status} is a word of bench")
        return self

    @classmethod
    def not_run(cls, name: GateName, reason: str) -> GateRecord:
        """A gate that did not run, and why."""
        return cls(name=name, status=Status.NOT_RUN, reason=reason)


class Environment(Record):
    """Where a verdict was reached. Versions are of installed distributions; absent ones are left out."""

    python: str
    platform: str
    packages: dict[str, str]
    gpu: str | None = None
    """Name of the GPU that the numerics and bench gates used; None if they used none."""
    arch: str | None = None
    """What the compile gate compiled for."""

    @classmethod
    def here(cls, *, gpu: str | None = None, arch: str | None = None) -> Environment:
        """This process's versions. Imports none of the packages."""
        packages = {}
        for name in ("coda-agent", "torch", "triton", "quack-kernels", "nvidia-cutlass-dsl"):
            try:
                packages[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return cls(
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            packages=packages,
            gpu=gpu,
            arch=arch,
        )


class Verdict(Record):
    """All gates of one candidate on one task."""

    schema_name: Literal["coda-agent/verdict/1"] = Field(default="coda-agent/verdict/1", alias="schema")
    task: str
    task_digest: str
    """Of the task's file: a verdict belongs to exactly this task."""
    source_sha256: str
    program_digest: str | None = None
    """Set exactly when the candidate could be traced."""
    program_json: str | None = None
    kind: str | None = None
    """epilogue, pointwise or plan."""
    gates: tuple[GateRecord, ...]
    status: Status
    first_failure: GateName | None = None
    seeds: dict[str, int] = Field(default_factory=dict)
    """The run's seed per gate: drawn freshly, recorded, never shown to an author."""
    schedule: dict[str, JsonValue] | None = None
    """Submitted with the source and found valid."""
    environment: Environment
    created: datetime.datetime

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    @field_validator("created")
    @classmethod
    def _aware(cls, value: datetime.datetime) -> datetime.datetime:
        if value.tzinfo is None:
            raise ValueError("created has no time zone")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if tuple(g.name for g in self.gates) != GATES:
            raise ValueError(f"gates are {', '.join(GATES)}, each once and in order")
        failed = next((g for g in self.gates if g.status.refuses), None)
        if self.first_failure != (failed.name if failed else None):
            raise ValueError(f"first_failure is {failed.name if failed else None}")
        if failed is not None:
            late = [g.name for g in self.gates[GATES.index(failed.name) + 1 :] if g.status is not Status.NOT_RUN]
            if late:
                raise ValueError(f"{', '.join(late)} ran after {failed.name} had failed")
        bench, numerics = self.gate("bench"), self.gate("numerics")
        if bench.status.good and numerics.status is not Status.PASS:
            raise ValueError("speed without right numbers: bench passed and numerics did not")
        if self.status is not overall(self.gates):
            raise ValueError(f"the status of these gates is {overall(self.gates)}, not {self.status}")
        if (self.program_digest is None) != (self.program_json is None):
            raise ValueError("a program and its digest come together")
        if self.gate("trace").status is Status.PASS and self.program_digest is None:
            raise ValueError("traced without a program")
        return self

    def gate(self, name: str) -> GateRecord:
        """One gate by name."""
        return next(g for g in self.gates if g.name == name)

    @property
    def passed(self) -> bool:
        """Whether every required gate passed, and bench did not refuse."""
        return self.status.good

    @property
    def not_run(self) -> tuple[GateRecord, ...]:
        """The gates that did not run, each with its reason."""
        return tuple(g for g in self.gates if g.status is Status.NOT_RUN)

    def to_json(self) -> str:
        """As text; `from_json` gives an equal verdict."""
        return self.model_dump_json(by_alias=True, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """Read and validate. Raises `pydantic.ValidationError`."""
        return cls.model_validate_json(text)


def overall(gates: tuple[GateRecord, ...]) -> Status:
    """The word that follows from the gates: the first refusal; else NOT_RUN where a required gate did not run; else what
    bench says; else PASS."""
    for gate in gates:
        if gate.status.refuses:
            return gate.status
    words = {g.name: g.status for g in gates}
    if any(words.get(name, Status.NOT_RUN) is Status.NOT_RUN for name in REQUIRED):  # type: ignore[call-overload]
        return Status.NOT_RUN
    bench = words.get("bench", Status.NOT_RUN)
    return Status.PASS if bench is Status.NOT_RUN else bench
