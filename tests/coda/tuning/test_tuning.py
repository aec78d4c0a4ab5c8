"""The tuner, with real processes: candidates that raise, hang, crash or are wrong, tuners that are killed or meet each other."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import signal
import subprocess
import sys
import time

import fake_backend
import pytest
import torch
from fake_backend import FAST, INVALID, SLOW, schedule
from tuning_support import HERE, Here, Scripted, entry, job, plus, problem, register

import coda
from coda import schedules
from coda.backends import registry
from coda.binding import spec_of
from coda.errors import CompileError
from coda.plan import Plan
from coda.primitives import ColVector, RowVector, row_sum
from coda.problem import Problem, Schedule, TensorSpec
from coda.schedules import Candidate
from coda.tuning import Job, Limits, Protocol, build_ahead, compile_only, jobs, steps, tune
from coda.tuning import tensors as synthetic
from coda.tuning.contest import Contest
from coda.tuning.crew import Answer, Crew

pytestmark = pytest.mark.interp

LIMITS = Limits(build=60.0, setup=60.0, trial=4.0, race=5.0, wait=60.0)
SHORT = Protocol(first=3, rounds=5)
START = 60.0
"""Seconds that the start of a child may take on a busy machine; what hangs is given fewer."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # children that share a processor wait for each other's threads
    monkeypatch.setattr(schedules, "_warned", [])
    register(monkeypatch)
    monkeypatch.setattr("coda.tune.order", lambda problem: ("fake",))
    schedules.forget()
    yield
    schedules.forget()
    registry.get.cache_clear()


@pytest.fixture
def here(monkeypatch):
    """No processes: what the tuner decides, not how it works."""
    monkeypatch.setattr("coda.tuning.search.Crew", Here)


@pytest.fixture
def scripted(monkeypatch):
    """As `here`, with answers of the racing process that a test writes."""

    def write(script):
        monkeypatch.setattr("coda.tuning.search.Crew", type("Scripted", (Scripted,), {"script": staticmethod(script)}))

    return write


def races(times, floor=0.01):
    """The answer to a race in which a position takes so many milliseconds."""

    def answer(request):
        rounds = range(request["rounds"])
        samples = {
            name: [[times[int(name)] * (1 + r % 3 / 100) / 1e3, 1e-5] for r in rounds] for name in request["names"]
        }
        return Answer("value", 0.01, {"samples": samples, "floor": floor})

    return answer


def offers(monkeypatch, *kinds: int) -> None:
    monkeypatch.setenv("FAKE_OFFERS", ",".join(map(str, kinds)))


def run(*given: Job, **options):
    return tune(given or [job()], backends=("fake",), limits=LIMITS, protocol=SHORT, workers=1, **options)


def children_of(pid: int) -> set[int]:
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = pathlib.Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.add(int(name))
    return found


def test_every_way_to_fail_is_contained_and_told(monkeypatch):
    """The builder that hangs and the racer that hangs, dies or raises take nobody with them."""
    limits = dataclasses.replace(LIMITS, build=12.0)
    heard, before = [], children_of(os.getpid())
    author = (schedule(INVALID), schedule(fake_backend.FAST + 1))
    (outcome,) = tune(
        [dataclasses.replace(job(), extra=author)],
        backends=("fake",), limits=limits, protocol=SHORT, workers=2, on_progress=heard.append,
    )  # fmt: skip
    assert outcome.status == "tuned", outcome.reason
    found = {c.schedule.tile_m: c for c in outcome.entry.candidates}
    said = {kind: found[kind].status for kind in found}
    assert said == {
        SLOW: "timed",
        FAST: "timed",
        FAST + 1: "timed",
        INVALID: "refused",
        fake_backend.RAISES: "failed",
        fake_backend.WRONG: "wrong",
        fake_backend.HANGS: "timeout",
        fake_backend.DIES: "crash",
        fake_backend.REFUSED: "refused",
        fake_backend.HANGS_BUILDING: "timeout",
        fake_backend.HANGS_TIMED: "timeout",
        fake_backend.UNWRITTEN: "wrong",
    }
    assert "fake: no luck" in found[fake_backend.RAISES].reason
    assert "SIGSEGV" in found[fake_backend.DIES].reason
    assert "fake: does not fit" in found[fake_backend.REFUSED].reason
    assert "while it was built: no answer within 12 s" in found[fake_backend.HANGS_BUILDING].reason
    assert "while it was timed: no answer within 5 s" in found[fake_backend.HANGS_TIMED].reason
    assert "output 'y'" in found[fake_backend.WRONG].reason
    assert "no such tile" in found[INVALID].reason
    assert found[FAST + 1].origin == "author"
    assert outcome.entry.first.schedule.tile_m in (FAST, FAST + 1)
    assert outcome.entry.gain > 2
    assert len(outcome.entry.first.samples) == SHORT.rounds
    assert outcome.entry.first.finalist
    assert not found[fake_backend.WRONG].samples
    assert schedules.read(outcome.entry.key) == outcome.entry
    assert {p.stage for p in heard} == {"build", "try", "race", "done"}
    assert children_of(os.getpid()) <= before


def test_what_is_known_is_not_tuned_again_unless_forced(here, monkeypatch):
    offers(monkeypatch, FAST)
    (first,) = run()
    assert first.status == "tuned", first.reason
    (again,) = run()
    assert (again.status, again.entry) == ("known", first.entry)
    submitted = dataclasses.replace(job(), extra=(schedule(FAST + 1),))  # nobody has raced this one
    (more,) = run(submitted, force=False)
    assert more.status == "tuned"
    assert {c.origin for c in more.entry.candidates} == {"default", "candidate", "author"}
    (forced,) = run(submitted, force=True)
    assert forced.status == "tuned"
    assert forced.entry.first.samples != more.entry.first.samples
    assert schedules.read(forced.entry.key) == forced.entry


def test_calls_of_this_process_choose_anew(here, monkeypatch):
    from coda import call

    offers(monkeypatch, FAST)
    before = call.GENERATION[0]
    (outcome,) = run()
    assert outcome.status == "tuned"
    assert call.GENERATION[0] == before + 1


def test_a_default_that_nothing_beats_is_kept(scripted, monkeypatch):
    monkeypatch.setattr(
        fake_backend.Fake, "candidates", lambda self, program, problem: [schedule(FAST), schedule(FAST + 1)]
    )
    race = races([1.0, 0.995, 2.0])
    scripted(lambda step, request, at: race(request) if step == "race" else None)
    (outcome,) = run()
    assert [c.schedule.tile_m for c in outcome.entry.candidates] == [SLOW, FAST, FAST + 1]
    assert [c.status for c in outcome.entry.candidates] == ["timed"] * 3
    assert [c.finalist for c in outcome.entry.candidates] == [True, True, False]
    assert (outcome.entry.winner, outcome.entry.default, outcome.entry.gain) == (0, 0, 1.0)
    race = races([1.0, 0.8, 2.0])
    (outcome,) = run(force=True)
    assert (outcome.entry.winner, outcome.entry.default) == (1, 0)
    assert outcome.entry.gain == pytest.approx(1.25, rel=1e-3)


def test_only_the_first_candidates_take_part_when_so_many_were_asked_for(scripted, monkeypatch):
    offered = [schedule(FAST), schedule(SLOW), schedule(FAST + 1)]  # the second is the default again
    monkeypatch.setattr(fake_backend.Fake, "candidates", lambda self, program, problem: offered)
    scripted(lambda step, request, at: races([1.0] * 3)(request) if step == "race" else None)
    (outcome,) = tune(
        [job()], backends=("fake",), limits=LIMITS, protocol=dataclasses.replace(SHORT, most=2), workers=1
    )
    assert [c.schedule.tile_m for c in outcome.entry.candidates] == [SLOW, FAST]
    assert outcome.entry.protocol["most"] == 2


def test_the_default_is_what_an_untuned_call_runs(scripted, monkeypatch):
    """Not the first choice of a backend that a call would not take: its own time says nothing about what tuning gained."""
    monkeypatch.setitem(registry.MODULES, "second", "second_fake")
    monkeypatch.setattr("coda.tune.order", lambda problem: ("second", "fake"))
    monkeypatch.setattr(
        "second_fake.Second.default_schedule", lambda self, program, problem: Schedule(backend="second", tile_m=FAST)
    )
    monkeypatch.setattr("second_fake.Second.candidates", lambda self, program, problem: [])
    offers(monkeypatch, FAST)
    scripted(lambda step, request, at: races([2.0, 1.0, 1.0])(request) if step == "race" else None)
    (alone,) = run()
    assert [c.schedule.backend for c in alone.entry.candidates] == ["fake", "fake"]
    assert (alone.entry.default, alone.entry.gain) == (None, None)
    (both,) = tune([job()], backends=("fake", "second"), limits=LIMITS, protocol=SHORT, workers=1)
    assert both.entry.candidates[2].schedule.backend == "second"
    assert (both.entry.default, both.entry.winner, both.entry.gain) == (2, 2, 1.0)


def test_a_race_that_ends_badly_once_is_run_again(scripted, monkeypatch):
    """Where everybody is fine alone, nobody is put out."""
    offers(monkeypatch, FAST)

    def script(step, request, at):
        return Answer("timeout", 5.0, reason="no answer within 5 s", lost=True) if (step, at) == ("race", 1) else None

    scripted(script)
    (outcome,) = run()
    assert [c.status for c in outcome.entry.candidates] == ["timed", "timed"]
    assert all(len(c.samples) in (SHORT.first, SHORT.rounds) for c in outcome.entry.candidates)


def test_a_race_that_never_ends_has_no_winner(scripted, monkeypatch):
    offers(monkeypatch, FAST)

    def script(step, request, at):
        together = step == "race" and len(request["names"]) > 1
        return Answer("timeout", 5.0, reason="no answer within 5 s", lost=True) if together else None

    scripted(script)
    (outcome,) = run()
    assert (outcome.status, outcome.entry) == ("failed", None)
    assert outcome.reason == "failed: the race did not end"


@pytest.mark.parametrize("when", [("trial", 2), ("race", 1), ("race", 2)], ids=str)
def test_a_machine_that_fails_is_no_candidates_fault(scripted, monkeypatch, when):
    """The racing process is lost and cannot be made ready again: nothing is recorded, and the reason is told."""
    offers(monkeypatch, FAST)

    def script(step, request, at):
        if step == "setup" and at > 1:
            return Answer("error", 0.1, code="RuntimeError", reason="CUDA error: no device", lost=True)
        return Answer("crash", 0.1, reason="SIGABRT", lost=True) if (step, at) == when else None

    scripted(script)
    (outcome,) = run()
    assert (outcome.status, outcome.entry) == ("failed", None)
    assert "could not be made ready again: its inputs and reference: CUDA error: no device" in outcome.reason
    assert schedules.read(schedules.key_of(plus.program, problem())) is None


@pytest.mark.parametrize(("other", "winner"), [((0.98, 1.01, 0.99, 1.0, 1.02), 0), ((0.80, 0.81, 0.79, 0.8, 0.82), 1)])
def test_a_winner_is_faster_beyond_the_noise(other, winner):
    """The heuristic's choice stays where the other one is not clearly faster."""
    times = (tuple(1e-3 * x for x in (1.01, 1.0, 0.99, 1.02, 1.0)), tuple(1e-3 * x for x in other))
    taking = [
        Candidate(schedule(kind), origin, "timed", samples=samples, host=1e-5, finalist=True)
        for kind, origin, samples in zip((SLOW, FAST), ("default", "candidate"), times, strict=True)
    ]
    contest = Contest(job(), schedules.key_of(plus.program, problem()), ("fake",), taking, schedule(SLOW), floor=0.01)
    found = contest.entry(seconds=1.0, protocol={}, environment={})
    assert (found.winner, found.best, found.default) == (winner, {"fake": winner}, 0)


def test_a_race_of_one_backend_keeps_the_known_best_of_the_other(scripted, monkeypatch):
    monkeypatch.setitem(registry.MODULES, "second", "second_fake")
    offers(monkeypatch, FAST)
    times = iter(([2.0, 1.0], [2.0, 1.0], [2.2, 1.1], [2.2, 1.1]))
    scripted(lambda step, request, at: races(next(times))(request) if step == "race" else None)
    both = tune([job()], backends=("fake",), limits=LIMITS, protocol=SHORT, workers=1)[0].entry
    one = tune([job()], backends=("second",), limits=LIMITS, protocol=SHORT, workers=1)[0].entry
    assert one.backends == ("second", "fake")
    assert one.schedule("fake") == both.schedule("fake")
    assert one.candidates[one.best["fake"]].samples != both.candidates[both.best["fake"]].samples


def test_a_used_up_budget_starts_nothing(here):
    started = time.monotonic()
    (outcome,) = run(budget_s=0.0)
    assert (outcome.status, outcome.entry) == ("skipped", None)
    assert time.monotonic() - started < 10
    assert schedules.read(schedules.key_of(plus.program, problem())) is None


def test_where_nobody_is_right_there_is_no_entry(here, monkeypatch):
    offers(monkeypatch, fake_backend.WRONG)
    monkeypatch.setattr(
        fake_backend.Fake, "default_schedule", lambda self, program, problem: schedule(fake_backend.RAISES)
    )
    monkeypatch.setattr(fake_backend.Fake, "candidates", lambda self, program, problem: [schedule(fake_backend.WRONG)])
    (outcome,) = run()
    assert outcome.status == "failed"
    assert "fake: no luck" in outcome.reason
    assert "output 'y'" in outcome.reason
    assert schedules.read(schedules.key_of(plus.program, problem())) is None


def test_no_backend_and_no_gpu_are_reasons():
    (outcome,) = tune([job()], backends=("tritone",), limits=LIMITS, workers=1)
    assert outcome.status == "failed"
    assert "tritone: no backend 'tritone'" in outcome.reason
    (outcome,) = tune([job()], backends=("triton",), limits=LIMITS, workers=1)
    assert outcome.status == "failed"
    assert "triton: no CUDA device" in outcome.reason
    if not torch.cuda.is_available():
        (outcome,) = run(job(arch="sm_90"))
        assert outcome.reason == "there is no GPU of sm_90 here"


def test_what_a_builder_could_not_compile_is_tried_where_it_is_raced(scripted, monkeypatch):
    """Builders share processors and memory: their compiler may fail where another one does not."""
    offers(monkeypatch, FAST)
    real, asked = fake_backend.Fake.compile, []

    def once(self, program, problem, schedule, arch):
        asked.append(schedule)
        if asked.count(schedule) == 1 and schedule.tile_m == FAST:
            raise CompileError("ptxas was killed")
        return real(self, program, problem, schedule, arch)

    monkeypatch.setattr(fake_backend.Fake, "compile", once)
    scripted(lambda step, request, at: races([2.0, 1.0])(request) if step == "race" else None)
    (outcome,) = run()
    assert asked.count(schedule(FAST)) == 2
    assert outcome.entry.first.schedule == schedule(FAST)


def test_a_broken_cache_is_a_failure_with_the_result(here, monkeypatch):
    offers(monkeypatch, FAST)

    def full(entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(schedules, "write", full)
    (outcome,) = run()
    assert outcome.status == "failed"
    assert "No space left" in outcome.reason
    assert outcome.entry.first.schedule == schedule(FAST)


# other processes ------------------------------------------------------------------------------------------------------

TUNER = """
import sys
sys.path[:0] = [{here!r}]
from coda.backends import registry
registry.MODULES["fake"] = "fake_backend"
from coda.tuning import Limits, Protocol, tune
from tuning_support import job
def told(progress):
    print(progress.stage, flush=True)
(outcome,) = tune([job()], backends=("fake",), limits=Limits(trial=600), protocol=Protocol(first=3, rounds=5), workers=1, on_progress=told)
print("outcome", outcome.status, outcome.reason, flush=True)
"""


def tuner(offered: str) -> subprocess.Popen:
    environment = {**os.environ, "FAKE_OFFERS": offered}
    code = TUNER.format(here=str(HERE))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=HERE.parents[2], env=environment
    )


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_tuner_that_is_killed_leaves_no_process_and_a_usable_cache(monkeypatch, caplog):
    schedules.write(entry(schedules.key_of(plus.program, problem(m=64))))
    process = tuner(f"{FAST},{fake_backend.HANGS}")
    seen = []
    for line in process.stdout:
        seen.append(line.strip())
        if seen.count("try") == 3:  # the default and the fast one are tried, the third hangs
            break
    children = children_of(process.pid)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    until = time.monotonic() + 20
    while any(map(alive, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in children if alive(pid)]
    assert schedules.read(schedules.key_of(plus.program, problem(m=64))) is not None
    offers(monkeypatch, FAST)
    (outcome,) = run()  # its locks are gone with it
    assert outcome.status == "tuned", outcome.reason
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_two_processes_that_tune_one_key_do_it_once():
    both = [tuner(str(FAST)), tuner(str(FAST))]
    said = [process.communicate(timeout=START * 2)[0].splitlines()[-1] for process in both]
    assert sorted(said) == ["outcome known another process tuned it meanwhile", "outcome tuned "] or sorted(said) == [
        "outcome known ",  # the second one came when the first had ended
        "outcome tuned ",
    ]
    found = schedules.read(schedules.key_of(plus.program, problem()))
    assert found is not None
    assert found.first.schedule == schedule(FAST)


# what is tuned --------------------------------------------------------------------------------------------------------


@coda.epilogue
def first(acc, gamma: RowVector, scale: ColVector, *, eps: float = 1e-6):
    return {"y": acc * gamma * scale, "s": row_sum(acc) + eps}


@coda.plan
def two(a, w, gamma, scale, v):
    r = first(a, w, gamma=gamma, scale=scale)
    return {"z": plus(r.y, v, x=r.y).y}


def test_jobs_of_a_call():
    a, w = torch.randn(32, 16), torch.randn(64, 16).mT
    (found,) = jobs(first, a, w, gamma=torch.ones(64), scale=torch.ones(32))
    assert found.program.digest == first.program.digest
    assert (found.problem.m, found.problem.n, found.problem.k) == (32, 64, 16)
    assert found.problem.spec("b").layout == "col"
    assert str(found) == "first 32×64×16 float32"


def test_jobs_of_a_plan_on_meta_tensors():
    def meta(*shape):
        return torch.empty(shape, device="meta", dtype=torch.bfloat16)

    found = jobs(two, meta(8192, 512), meta(512, 256), meta(256), meta(8192), meta(256, 256), arch="sm_90")
    assert isinstance(two.program, Plan)
    assert [(j.program.name, j.problem.m, j.problem.n, j.problem.k) for j in found] == [
        ("first", 8192, 256, 512),
        ("plus", 8192, 256, 256),
    ]
    assert {j.problem.arch for j in found} == {"sm_90"}
    assert found[0].program.digest in {p.digest for p in two.program.programs}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int32"])
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("layout", ["row", "col", "any"])
@pytest.mark.parametrize("shape", [(48, 32), (7, 33), (5,), (64,)], ids=str)
def test_a_synthetic_tensor_has_its_spec(dtype, aligned, layout, shape):
    if len(shape) == 1 and layout == "col":
        pytest.skip("vectors have no such layout")
    spec = TensorSpec(dtype, layout, aligned)
    found = synthetic.like(spec, shape, torch.device("cpu"))
    assert tuple(found.shape) == shape
    assert spec_of(found) == spec


def test_synthetic_inputs_fit_the_program_and_are_repeatable():
    p = Problem.example(first.program, m=48, n=32, k=16, dtype="bfloat16", arch=None)
    p = dataclasses.replace(
        p, tensors=tuple((n, dataclasses.replace(s, layout="col")) if n == "b" else (n, s) for n, s in p.tensors)
    )
    (one, same, other) = (synthetic.draw(first.program, p, torch.device("cpu"), seed) for seed in (1, 1, 2))
    assert one["eps"] == 1e-6
    assert torch.equal(one["a"], same["a"])
    assert not torch.equal(one["a"], other["a"])
    assert 0.5 <= float(one["gamma"].min()) <= float(one["gamma"].max()) <= 1.5
    assert jobs(first, **one) == [Job(first.program, p)]


def test_poison_reaches_every_element():
    x = torch.zeros(8, 16, dtype=torch.float8_e4m3fn)
    y = torch.zeros(64)[3:]
    synthetic.poison([x, y])
    assert bool(x.float().isnan().all())
    assert bool(y.isnan().all())


# without a GPU --------------------------------------------------------------------------------------------------------


def test_compile_only_reports_what_each_candidate_takes(monkeypatch):
    """Two of Triton's schedules, really compiled for sm_90, and one that does not fit there."""
    p = Problem.example(plus.program, m=256, n=256, k=128, dtype="bfloat16")
    backend = registry.get("triton")
    small = Schedule(tile_m=64, tile_n=64, tile_k=64, warps=4, stages=2, persistent=False)
    huge = Schedule(tile_m=128, tile_n=256, tile_k=128, warps=8, stages=4)
    monkeypatch.setattr(type(backend), "candidates", lambda self, program, problem: [small])
    heard = []
    found = compile_only(
        [Job(plus.program, p, extra=(huge,))],
        "sm_90",
        backends=("triton",),
        workers=2,
        on_built=lambda *told: heard.append(told),
    )
    by = {b.schedule: b for b in found}
    assert by[small].status == "built", by[small].reason
    assert by[small].registers > 16
    assert by[small].spills == 0
    assert by[small].shared_memory > 16384
    assert by[huge].status == "refused"
    assert "shared memory" in by[huge].reason
    assert [at for _, at, _ in heard] == list(range(1, len(found) + 1))


def test_compile_only_contains_what_hangs_and_raises(monkeypatch):
    monkeypatch.setattr("coda.tuning.building.SECONDS", 15.0)
    offers(monkeypatch, FAST, fake_backend.HANGS_BUILDING, fake_backend.REFUSED)
    found = compile_only([job()], "sm_90", backends=("fake",), workers=1)
    assert [b.status for b in found] == ["built", "built", "timeout", "refused"]
    assert len(compile_only([job()], "sm_90", backends=("fake",), workers=1, most=1)) == 1


def test_compile_only_says_why_a_backend_is_left_out(monkeypatch):
    offers(monkeypatch, FAST)
    for names in (("tritone", "fake"), ("tritone",)):
        found = compile_only([job()], "sm_20", backends=names, workers=1)
        assert [(b.schedule.backend, b.status) for b in found if b.status != "built"][-1] == ("tritone", "refused")
        assert "no backend 'tritone'" in found[-1].reason
    (found,) = compile_only([job()], "sm_20", backends=("triton",), workers=1)
    assert (found.status, found.schedule.backend) == ("refused", "triton")
    assert "no such architecture" in found.reason


def test_build_ahead_compiles_what_an_untuned_call_runs_and_what_was_submitted(monkeypatch):
    offers(monkeypatch, FAST)
    given = [job(), job(m=64), Job(plus.program, problem(), extra=(schedule(fake_backend.REFUSED), schedule(FAST)))]
    assert build_ahead(given, backends=("fake",), workers=2) == 4  # two defaults, the third job's own, one submitted
    assert build_ahead([job()], backends=("tritone",), workers=1) == 0


def test_build_ahead_waits_no_longer_than_it_may(monkeypatch):
    hanging = Job(plus.program, problem(), extra=(schedule(fake_backend.HANGS_BUILDING),))
    started = time.monotonic()
    assert build_ahead([hanging], backends=("fake",), workers=2, budget_s=2.0) <= 1
    assert time.monotonic() - started < START


# the crew -------------------------------------------------------------------------------------------------------------


def test_a_builder_that_dies_between_two_requests_is_replaced_and_nobody_is_blamed():
    request = {**steps.request_of(plus.program, problem()), "step": "build", "modules": {"fake": "fake_backend"}}
    request |= {"schedule": schedule(FAST).to_dict(), "device": 0}
    answers = []
    with Crew(1) as crew:
        for at in range(2):
            crew.submit(request, START, answers.append)
            while len(answers) == at:
                crew.pump(1.0)
            (child,) = crew._builders
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        assert crew.starts == 2
    assert [a.kind for a in answers] == ["value", "value"]


def test_nothing_is_left_of_a_crew_that_is_left_by_an_exception():
    request = {**steps.request_of(plus.program, problem()), "step": "build", "modules": {"fake": "fake_backend"}}
    request |= {"schedule": schedule(fake_backend.HANGS_BUILDING).to_dict(), "device": 0}
    before, seen = children_of(os.getpid()), set()

    def interrupted() -> None:
        with Crew(1) as crew:
            crew.submit(request, START, print)
            crew.pump(0.1)
            seen.update(children_of(os.getpid()) - before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen
    assert not seen & children_of(os.getpid())


def test_triton_builds_what_a_launch_would_build_and_launches_nothing(monkeypatch):
    """The arguments of both must be the same, or a launch would not find on disk what was built ahead."""
    backend = registry.get("triton")
    p = Problem.example(first.program, m=64, n=64, k=32, dtype="bfloat16")
    made = backend.compile(first.program, p, backend.default_schedule(first.program, p), None)
    tensors = {**synthetic.draw(first.program, p, torch.device("cpu"), 1)}
    tensors |= synthetic.results(first.program, p, torch.device("cpu"))
    seen = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **options: seen.append(("launch", grid, args, options))

        def warmup(self, *args, grid, **options):
            seen.append(("build", grid, args, options))

    for step in (made.payload._kernel, made.payload._finisher):
        monkeypatch.setattr(step, "_function", Kernel())
        monkeypatch.setattr(step, "_direct", False)
    device = torch.device("cpu")
    monkeypatch.setattr(type(made.payload), "_programs", lambda self, device: 7)
    made.payload._build(tensors, device)
    built, seen[:] = list(seen), []
    made.payload._launch(tensors, device)
    assert [what for what, *_ in built] == ["build", "build"]
    assert [what for what, *_ in seen] == ["launch", "launch"]
    for one, other in zip(built, seen, strict=True):
        assert one[1] == other[1]
        assert one[3] == other[3]
        assert [_kind(x) for x in one[2]] == [_kind(x) for x in other[2]]


def _kind(x):
    return (x.dtype, tuple(x.shape)) if isinstance(x, torch.Tensor) else type(x) if not isinstance(x, int) else x
