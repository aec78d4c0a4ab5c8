"""The cache of measured schedules: what survives a file that is damaged, a writer that is killed, two writers at once."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
import types

import pytest
from fake_backend import FAST, INVALID, schedule
from tuning_support import HERE, entry, plus, problem, register

from coda import schedules
from coda.backends import registry
from coda.errors import FormatError
from coda.problem import Schedule, TensorSpec

pytestmark = pytest.mark.null


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(schedules, "_warned", [])
    schedules.forget()
    yield
    schedules.forget()
    registry.get.cache_clear()


def key(**changes) -> schedules.Key:
    found = {"program": plus.program.digest, "problem": problem(), "gpu": "CPU", "versions": (("torch", "1"),)}
    return schedules.Key(**{**found, **changes})


def test_round_trip():
    written = entry(key())
    path = schedules.write(written)
    assert path == schedules.path_of(key())
    assert schedules.read(key()) == written
    assert written.gain == pytest.approx(2.0)
    assert written.schedule("fake") == schedule(FAST)
    assert written.schedule("triton") is None


def test_a_key_is_everything_that_matters():
    p = problem()
    specs = dict(p.tensors)
    others = [
        key(program="f" * 64),
        key(gpu="Another GPU"),
        key(versions=(("torch", "2"),)),
        key(problem=dataclasses.replace(p, m=p.m + 1)),
        key(problem=dataclasses.replace(p, arch="sm_90")),
        key(problem=dataclasses.replace(p, tensors=tuple({**specs, "b": TensorSpec("float32", "col")}.items()))),
        key(
            problem=dataclasses.replace(p, tensors=tuple({**specs, "b": TensorSpec("float32", aligned=False)}.items()))
        ),
        key(problem=dataclasses.replace(p, tensors=tuple({**specs, "x": TensorSpec("float16")}.items()))),
    ]
    assert len({k.digest for k in (key(), *others)}) == len(others) + 1


def test_versions_name_the_toolchain_and_each_backends_table(monkeypatch):
    register(monkeypatch)
    found = dict(schedules.versions())
    assert {"torch", "cuda", "backend triton", "backend reference"} <= found.keys()
    assert found["backend fake"] == "7"


def test_nothing_there_is_no_warning(caplog):
    assert schedules.read(key()) is None
    assert not caplog.records


def _text() -> str:
    return entry(key()).to_json()


def _changed(**changes) -> str:
    return json.dumps({**json.loads(_text()), **changes})


def _candidate(at: int, **changes) -> str:
    data = json.loads(_text())
    data["candidates"][at] |= changes
    return json.dumps(data)


DAMAGED = {
    "empty": lambda: "",
    "truncated": lambda: _text()[:-40],
    "no JSON": lambda: "\0" * 100,
    "another kind of JSON": lambda: "[1, 2]",
    "deep": lambda: "[" * 100_000,
    "a newer format": lambda: _changed(format="coda.tuned/2"),
    "a field of a newer format": lambda: _changed(more=1),
    "another key's": lambda: entry(key(gpu="Another GPU")).to_json(),
    "no winner": lambda: _changed(winner=None),
    "a winner out of range": lambda: _changed(winner=7),
    "a winner that was wrong": lambda: _changed(winner=2),
    "the best of another backend": lambda: _changed(best={"triton": 1}),
    "a schedule with an unknown field": lambda: _candidate(1, schedule={"backend": "fake", "colour": 3}),
    "a schedule out of range": lambda: _candidate(1, schedule={"backend": "fake", "tile_m": -4}),
    "a time that is none": lambda: _candidate(1, samples=[1e-3, "fast"]),
    "a time below zero": lambda: _candidate(1, samples=[-1e-3, 1e-3]),
    "too large": lambda: _text() + " " * schedules.MAX_BYTES,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_one_warning_and_no_entry(text, caplog):
    path = schedules.path_of(key())
    path.parent.mkdir(parents=True)
    path.write_text(text(), encoding="utf-8")
    assert schedules.read(key()) is None
    assert schedules.read(key()) is None
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    said = warnings[0].getMessage()
    assert str(path) in said
    assert ("another version of coda" in said) == ("coda.tuned/2" in said)
    assert ("tuning again replaces" in said) == ("coda.tuned/2" not in said)
    schedules.write(entry(key()))  # tuning again mends it
    assert schedules.read(key()) is not None


def test_bytes_that_are_no_text_and_a_folder_in_its_place(caplog):
    path = schedules.path_of(key())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe{}")
    assert schedules.read(key()) is None
    path.unlink()
    path.mkdir()
    assert schedules.read(key()) is None
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_the_warning_promises_no_more_than_tuning_can_do(caplog, monkeypatch):
    path = schedules.path_of(key())
    path.mkdir(parents=True)
    assert schedules.read(key()) is None
    assert "until it is removed" in caplog.messages[-1]
    with pytest.raises(OSError, match=path.name):
        schedules.write(entry(key()))
    path.rmdir()
    path.write_text(_changed(format="coda.tuned/2"), encoding="utf-8")
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: p != path.parent and real(p, mode))  # whoever runs the tests
    monkeypatch.setattr(schedules, "_warned", [])
    assert schedules.read(key()) is None
    assert "not writable: CODA_CACHE_DIR" in caplog.messages[-1]
    assert not any("replaces" in message for message in caplog.messages)


def test_an_entry_whose_winner_was_not_timed_is_not_written():
    with pytest.raises(FormatError, match="not among what was timed"):
        schedules.write(entry(key(), winner=2))
    assert not schedules.path_of(key()).exists()


def test_a_file_is_looked_for_once(monkeypatch):
    looks = []
    real = schedules.read
    monkeypatch.setattr(schedules, "read", lambda key: looks.append(key) or real(key))
    monkeypatch.setattr(schedules, "gpu_name", lambda arch, device=None: "Fake GPU")
    p = problem(arch="sm_90")
    assert schedules.find(plus.program, p) is None
    assert schedules.find(plus.program, p) is None
    assert len(looks) == 1
    found = schedules.key_of(plus.program, p)
    schedules.write(entry(found))
    assert schedules.find(plus.program, p) == entry(found)
    assert schedules.find(plus.program, p) is schedules.find(plus.program, p)
    assert len(looks) == 2


def test_without_a_gpu_of_the_architecture_nothing_is_looked_for(monkeypatch):
    monkeypatch.setattr(schedules, "read", lambda key: pytest.fail("read"))
    monkeypatch.setattr(schedules, "gpu_name", lambda arch, device=None: None)
    assert schedules.find(plus.program, problem(arch="sm_90")) is None


def test_each_card_has_its_own_measurements(monkeypatch):
    """Two products of one architecture in one machine: what counts is where the tensors are, not which one is current."""
    cards = [("H100", (9, 0)), ("H200", (9, 0)), ("A100", (8, 0))]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda at: cards[at][0])
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda at: cards[at][1])
    schedules._device.cache_clear()
    p = problem(arch="sm_90")
    try:
        assert [schedules.gpu_name("sm_90", at) for at in (None, 0, 1, 2)] == ["H100", "H100", "H200", None]
        mine = schedules.key_of(plus.program, p, 1)
        assert mine.gpu == "H200"
        schedules.write(entry(mine))
        assert schedules.find(plus.program, p, 0) is None
        assert schedules.find(plus.program, p, 1) == entry(mine)
        assert schedules.find(plus.program, p) is None
        assert schedules.find(plus.program, p, 2) is None
    finally:
        schedules._device.cache_clear()


def test_a_call_asks_for_the_card_of_its_tensors(monkeypatch):
    from coda import binding, call

    asked = []
    reference = registry.get("reference")
    monkeypatch.setattr(call, "choose", lambda *args: asked.append(args[-1]) or (reference, Schedule("reference")))
    y = types.SimpleNamespace(device=types.SimpleNamespace(index=3))
    call._compiled(plus.program, binding.Bound(problem(), {"out.y": y}, ("y",)), None, None)
    assert asked == [3]


WRITER = """
import sys
sys.path[:0] = [{here!r}]
from tuning_support import entry, plus, problem
from coda import schedules
key = schedules.Key(plus.program.digest, problem(), "CPU", (("torch", "1"),))
print("ready", flush=True)
at = 0
while True:
    at += 1
    schedules.write(entry(key, name=sys.argv[1] * 20000, seconds=float(at)))
"""


def writer(name: str) -> subprocess.Popen:
    code = WRITER.format(here=str(HERE))
    process = subprocess.Popen(
        [sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2]
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_writers_that_are_killed_and_that_write_at_once_leave_a_usable_file(caplog):
    """A reader finds one whole entry at any time, whoever writes, and whenever a writer ends."""
    for wait in (0.02, 0.05, 0.11):
        writers = [writer("a"), writer("b")]
        until = time.monotonic() + 5
        while not schedules.path_of(key()).exists() and time.monotonic() < until:
            time.sleep(0.005)
        until = time.monotonic() + wait
        while time.monotonic() < until:
            found = schedules.read(key())
            assert found is not None
            assert set(found.name) in ({"a"}, {"b"})
        for process in writers:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        assert schedules.read(key()) is not None
    assert not caplog.records
    assert schedules.write(entry(key())).is_file()


def test_what_killed_writers_left_is_removed_in_time():
    path = schedules.write(entry(key()))
    old, new = path.parent / ".x.tmp", path.parent / ".y.tmp"
    for leftover in (old, new):
        leftover.write_text("half")
    os.utime(old, (time.time() - 90_000,) * 2)
    schedules.write(entry(key()))
    assert not old.exists()
    assert new.exists()  # its writer may be at work


# what a call makes of it ----------------------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(monkeypatch):
    """A machine on which `fake` is the only fused backend, and runs on the GPU."""
    register(monkeypatch)
    monkeypatch.setattr(schedules, "gpu_name", lambda arch, device=None: "Fake GPU")
    monkeypatch.setattr("coda.tune.order", lambda problem: ("fake",))
    p = problem(arch="sm_90")
    return p, schedules.key_of(plus.program, p)


def chosen(p, caplog, backend=None, config=None):
    from coda.tune import choose

    caplog.clear()
    with caplog.at_level(logging.DEBUG, "coda"):
        found, picked = choose(plus.program, p, backend, config)
    return found.name, picked, "\n".join(r.getMessage() for r in caplog.records)


def test_the_order_of_choice_and_what_the_log_says(on_a_gpu, caplog):
    p, k = on_a_gpu
    heuristic = registry.get("fake").default_schedule(plus.program, p)
    name, picked, log = chosen(p, caplog)
    assert (name, picked) == ("fake", heuristic)
    assert "fake, the first that can" in log
    assert "the shipped heuristic's schedule" in log

    schedules.write(entry(k))
    for backend in (None, "fake"):
        name, picked, log = chosen(p, caplog, backend)
        assert (name, picked) == ("fake", schedule(FAST))
        assert "the best of 2 measured on 2026-01-01" in log
        assert ("because it was named" if backend else "the fastest of fake when measured") in log

    own = Schedule(backend="fake", tile_m=240)
    name, picked, log = chosen(p, caplog, config=own)
    assert (name, picked) == ("fake", own)
    assert "the call's own schedule" in log
    assert chosen(p, caplog, "reference")[0] == "reference"


def test_whether_a_schedule_was_measured_can_be_asked(on_a_gpu):
    from coda.tune import is_measured

    p, k = on_a_gpu
    assert not is_measured(plus.program, p, schedule(FAST))
    schedules.write(entry(k))
    assert is_measured(plus.program, p, schedule(FAST))
    assert not is_measured(plus.program, p, dataclasses.replace(schedule(FAST), stages=7))
    assert not is_measured(plus.program, dataclasses.replace(p, m=p.m + 1), schedule(FAST))
    assert not is_measured(plus.program, problem(), schedule(FAST))  # on a CPU nothing is


def test_a_problem_that_was_not_measured_gets_the_heuristic(on_a_gpu, caplog):
    p, k = on_a_gpu
    schedules.write(entry(k))
    other = dataclasses.replace(p, m=p.m + 1)
    assert chosen(other, caplog)[1] == registry.get("fake").default_schedule(plus.program, other)


def test_a_schedule_that_its_backend_refuses_is_ignored(on_a_gpu, caplog):
    p, k = on_a_gpu
    bad = dataclasses.replace(entry(k).candidates[1], schedule=schedule(INVALID))
    schedules.write(entry(k, candidates=(entry(k).candidates[0], bad)))
    name, picked, log = chosen(p, caplog)
    assert (name, picked) == ("fake", registry.get("fake").default_schedule(plus.program, p))
    assert "passed over: fake: no such tile" in log


def test_a_race_that_left_out_a_backend_does_not_decide_between_backends(on_a_gpu, caplog, monkeypatch):
    p, k = on_a_gpu
    monkeypatch.setitem(registry.MODULES, "second", "second_fake")
    monkeypatch.setattr("coda.tune.order", lambda problem: ("second", "fake"))
    schedules.forget()
    k = schedules.key_of(plus.program, p)  # another backend: another machine
    schedules.write(entry(k))
    name, _, log = chosen(p, caplog)
    assert name == "second"
    assert "does not decide between backends: second" in log
    assert chosen(p, caplog, "fake")[1] == schedule(FAST)  # its own best is known all the same
    schedules.write(entry(k, backends=("fake", "second")))
    assert chosen(p, caplog)[:2] == ("fake", schedule(FAST))
