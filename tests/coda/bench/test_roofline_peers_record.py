"""Floors, peers that are absent, and records that refuse to lie."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
import types

import pytest

from coda.bench import peers
from coda.bench import record as record_module
from coda.bench.record import BenchRecord, Compared, Measured
from coda.bench.roofline import Floor, Rates, copy_bandwidth, suspicion
from coda.bench.timing import Sample
from coda.explain import Cost

pytestmark = pytest.mark.null

RATES = Rates(flops=800e12, bandwidth=4e12)


def test_the_floor_is_the_larger_of_compute_and_traffic() -> None:
    gemm = Floor.of(Cost(2 * 4096**3, 10**6, 3 * 2 * 4096**2, 2 * 4096**2), RATES)
    assert (gemm.bound, gemm.seconds) == ("compute", 2 * 4096**3 / 800e12)
    thin = Floor.of(Cost(2 * 4096 * 4096 * 16, 0, 2 * 4096**2, 2 * 4096**2), RATES)
    assert (thin.bound, thin.seconds) == ("bandwidth", 4 * 4096**2 / 4e12)
    assert Floor.of_numbers(0, 4000, RATES).bound == "bandwidth"


def test_faster_than_physics_is_suspect() -> None:
    floor = Floor(1e-4, "compute", 2 * 4096**3, 10**8)
    assert suspicion(0.9e-4, floor) is not None  # X55
    assert suspicion(0.96e-4, floor) is None
    assert suspicion(1.1e-4, floor) is None
    assert "data sheet" in (suspicion(1.2e-4, Floor(1e-4, "compute", 2 * 4096**3, 10**8), gpu="NVIDIA H200") or "")
    assert "best peer" in (suspicion(2e-4, floor, best_peer=4.1e-4) or "")
    assert suspicion(2e-4, floor, best_peer=3.9e-4) is None


def test_copy_bandwidth_is_a_median() -> None:
    times = iter([1.0, *[0.5] * 20])

    class Clock:
        def time(self, call: object) -> Sample:
            return Sample(next(times), 0)

    assert copy_bandwidth(Clock(), lambda: None, 1000) == 2000


def test_peers_are_ready_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "liger_kernel" else find("json"))
    found = {e.peer.name: e for e in peers.lineup("swiglu_backward", ("unheard_of",))}
    assert [found[n].state for n in ("eager", "compile", "compile-halves", "max-autotune", "cublas")] == ["ready"] * 5
    assert (found["liger"].state, found["liger"].reason) == ("not installed", "pip install liger-kernel")
    assert found["quack"].state == "ready"
    assert found["cut-cross-entropy"].state == "not applicable"
    assert "swiglu_backward" in found["cut-cross-entropy"].reason
    assert found["unheard_of"].state == "not applicable"
    assert not found["cublas"].peer.competes
    assert {e.peer.name: e.state for e in peers.lineup("rope", gemms=0)}["cublas"] == "not applicable"


def test_an_adapter_makes_a_peer_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    double = peers.Candidate(lambda inputs: {"y": 2 * inputs["x"]})
    monkeypatch.setitem(peers.ADAPTERS, ("quack", "t"), lambda setting: {"quack": double})
    assert {e.peer.name: e.state for e in peers.lineup("t")}["quack"] == "ready"
    assert peers.build("quack", peers.Setting("t", lambda **_: {}, {}))["quack"]({"x": 3}) == {"y": 6}


def measured(name: str, seconds: float) -> Measured:
    return Measured(name, "tool", (seconds,) * 3, seconds, seconds, seconds, seconds, seconds, 1e-5)


def record() -> BenchRecord:
    return BenchRecord(
        task="t", program_digest="d", dims={"M": 1}, dtype="bfloat16", verified=True, kernel="kernel",
        measured=(measured("kernel", 1e-3), measured("eager", 2e-3)),
        compared=(Compared("eager", 0.5, 0.49, 0.51, "faster"), Compared("compile", 0.8, 0.79, 0.81, "faster")),
        noise_floor=0.005, floor=Floor(5e-4, "compute", 10, 10), bandwidth=4e12, gemm_flops=8e14, suspicion=None,
        absent={"quack": "not installed"}, environment={"gpu": "x"}, protocol={"rounds": 3},
    )  # fmt: skip


def test_a_record_survives_json_and_names_the_best_peer() -> None:
    before = record()
    assert BenchRecord.from_json(before.to_json()) == before
    assert before.best_peer is not None
    assert before.best_peer.peer == "compile"  # not the slowest one
    with pytest.raises(ValueError, match="format"):
        BenchRecord.from_json("{}")
    with pytest.raises(ValueError, match="malformed"):
        BenchRecord.from_json(before.to_json().replace('"noise_floor"', '"noise"'))


def test_speed_without_right_outputs_cannot_be_recorded() -> None:
    with pytest.raises(ValueError, match="unverified"):
        dataclasses.replace(record(), verified=False)
    with pytest.raises(ValueError, match="not measured"):
        dataclasses.replace(record(), kernel="other")
    with pytest.raises(ValueError, match="three samples"):
        dataclasses.replace(record(), measured=(dataclasses.replace(measured("kernel", 1e-3), samples=(1.0,)),))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("measured", 0, "median"), -1.0),
        (("measured", 0, "median"), math.inf),
        (("measured", 1, "median"), math.nan),
        (("measured", 0, "median"), 10**400),
        (("measured", 0, "median"), 1.0),  # above high
        (("measured", 0, "median"), True),
        (("measured", 0, "low"), "x"),
        (("measured", 0, "samples"), [math.nan] * 3),
        (("measured", 0, "samples"), ["a", "b", "c"]),
        (("measured", 0, "samples"), 3),
        (("measured", 0, "config"), []),
        (("measured", 0, "note"), None),
        (("measured", 0), "m"),
        (("compared", 0, "ratio"), math.nan),
        (("compared", 0, "ratio"), -1),
        (("compared", 0, "low"), 2.0),  # above high
        (("compared", 0, "word"), 1),
        (("compared",), None),
        (("floor", "seconds"), 0.0),
        (("floor", "bound"), "luck"),
        (("floor", "flops"), "many"),
        (("floor", "flops"), -5),
        (("floor", "flops"), 10**400),
        (("floor", "bytes"), 0),
        (("measured", 0, "high"), 1e308),  # twice as much is infinite
        (("dims",), {"M": 10**400}),
        (("noise_floor",), -0.1),
        (("bandwidth",), None),
        (("gemm_flops",), 0),
        (("environment",), "x"),
        (("environment",), {"gpu": 1}),
        (("absent",), ["a"]),
        (("dims",), {}),
        (("dims",), {"M": "a"}),
        (("dims",), {"M": 1.5}),
        (("protocol",), []),
        (("protocol",), {"rounds": math.nan}),
        (("verified",), "no"),
        (("suspicion",), 1),
        (("task",), None),
        (("measured_at",), 3),
        (("default",), 3),
    ],
)
def test_a_damaged_record_is_refused_with_the_reason(path: tuple[str | int, ...], value: object) -> None:
    """Whatever reads records shows them without checking again: a raw error or a NaN there would hide every other record."""
    data = json.loads(record().to_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=r"is .*: expected|malformed|is no number|measured_at") as caught:
        BenchRecord.from_json(json.dumps(data))
    assert type(caught.value) is ValueError


def test_half_a_character_is_refused_and_a_whole_one_is_not() -> None:
    data = json.loads(record().to_json())
    data["environment"] = {"gpu": "\U0001f600"}
    assert BenchRecord.from_json(json.dumps(data)).environment == {"gpu": "\U0001f600"}
    data["environment"] = {"gpu": "\ud83d"}
    with pytest.raises(ValueError, match="surrogates"):
        BenchRecord.from_json(json.dumps(data))


def test_a_number_beyond_all_floats_is_no_time() -> None:
    """JSON's 1e999 is read as infinity without a constant of that name."""
    text = record().to_json().replace('"median": 0.001', '"median": 1e999')
    with pytest.raises(ValueError, match="kernel: median is 'inf': expected a finite number"):
        BenchRecord.from_json(text)


def test_the_driver_is_asked_about_the_gpu_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's index counts the visible devices only, the driver's counts all of them."""
    asked: list[object] = []
    nvml = types.ModuleType("pynvml")
    nvml.__dict__.update(
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "570",
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetClockInfo=lambda handle, clock: 1980,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = record_module._nvml("0f-1a")
    assert asked == ["GPU-0f-1a"]
    assert found == {"driver": "570", "sm_clock_mhz": "1980", "power_limit_w": "700"}
    del nvml.nvmlDeviceGetClockInfo  # what one number lacks does not take the driver's version with it
    assert record_module._nvml("MIG-1") == {"driver": "570", "clocks": "unknown: AttributeError"}
    assert asked[-1] == "MIG-1"


def test_the_environment_has_the_version_of_everything_that_is_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from coda import schedules

    monkeypatch.setattr(record_module.metadata, "version", lambda name: f"version of {name}")
    monkeypatch.setitem(peers.PEERS, "newcomer", peers.Peer("newcomer", "human", "newcomer", "newcomer-kernels", True))
    found = record_module.environment()
    expected = {*schedules.DISTRIBUTIONS, *(p.distribution for p in peers.PEERS.values())} - {"torch"}
    assert {name: found[name] for name in expected} == {name: f"version of {name}" for name in expected}
    assert found["torch"] == str(torch.__version__)
