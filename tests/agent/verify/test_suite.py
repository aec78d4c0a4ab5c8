"""Sweeps: what kills a process costs only itself, results come as they are measured, a killed sweep goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from agent import task as tasks
from agent.errors import BenchUnavailable
from agent.keeping import benchmarks, measured
from agent.records import Status
from agent.verify import identity, suite
from agent.verify.journal import BROKEN, TOO_LONG, Journal, last_at_work
from coda import schedules
from coda.bench.record import BenchRecord
from coda.bench.timing import gpu_lock
from coda.problem import Schedule

pytestmark = pytest.mark.interp

WHERE = suite.Machine("test-gpu", 2**40, {"gpu": "NVIDIA Test", "torch": "2", "sm_clock_mhz": "1980"})
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> suite.Options:
    """Workers that use the double, and a lock of the test's own."""
    monkeypatch.setattr(suite, "WORKER", "bench_double:work")
    monkeypatch.setattr(suite, "gpu_health", lambda **_: type("Health", (), {"state": "healthy", "reason": ""}))
    monkeypatch.setattr(suite, "_judge", judge)
    monkeypatch.setenv("CODA_CACHE_DIR", str(tmp_path / "cache"))
    path = os.pathsep.join((str(HERE), str(ROOT)))
    return suite.Options(rounds=9, parallel=2, variant_s=3, env={"PYTHONPATH": path}, wait_s=1)


def judge(task: str, folder: str) -> str:
    """The same in every process, whoever edits a file meanwhile."""
    return "judge"


def jobs(*rows: int, task: str = "rms_scale") -> list[suite.Job]:
    target = benchmarks.of_example(task)
    return benchmarks.jobs([target], lambda spec: [{"M": m, "N": 4096, "K": 4096} for m in rows])


def measure(
    options: suite.Options, wanted: list[suite.Job], log: benchmarks.Log, *, resume: bool = False
) -> benchmarks.Sweep:
    return benchmarks.measure(wanted, WHERE, options, log, resume=resume)


def test_what_kills_a_process_costs_only_itself(options: suite.Options, tmp_path: pathlib.Path) -> None:
    log = benchmarks.Log(tmp_path / "results.jsonl")
    sweep = measure(options, jobs(2, 1, 4, 6), log)
    crashed, fine, kernel, wrong = sweep.results
    assert crashed.record is not None
    assert crashed.absent["liger"].startswith("crashed: the process was ended by SIGABRT")
    assert fine.record is not None
    assert "liger" not in fine.absent
    assert fine.absent == {"flashinfer": "not installed: pip install x"}
    assert (kernel.status, kernel.record) == (Status.CRASH, None)
    assert (wrong.status, wrong.settled) == (Status.WRONG_VALUES, True)
    record = benchmarks.record_of(crashed)
    assert isinstance(record, BenchRecord)
    assert {c.peer for c in record.compared} == {"quack", "compile"}
    assert record.absent == {"liger": crashed.absent["liger"]}


def test_a_peer_that_hangs_is_left_behind(options: suite.Options, tmp_path: pathlib.Path) -> None:
    (result,) = measure(options, jobs(3), benchmarks.Log(tmp_path / "r.jsonl")).results
    assert result.record is not None
    assert result.absent["liger"] == "hung: did not finish within 3 s"


def test_a_result_without_a_peer_that_another_try_may_have_is_not_settled(
    options: suite.Options, tmp_path: pathlib.Path
) -> None:
    log = benchmarks.Log(tmp_path / "r.jsonl")
    (result,) = measure(options, jobs(2), log).results
    assert result.record is not None
    assert measure(options, jobs(2), log, resume=True).reused == 0

    def settled(**absent: str) -> bool:
        return result.model_copy(update={"absent": absent}).settled

    assert settled(liger="not installed: pip install x", quack="wrong: output 'z'", compile="not asked for")
    assert settled(**{"quack[a]": "failed: no such tile"})  # one configuration of many
    assert not settled(liger="failed: RuntimeError: x")
    assert not settled(quack="none of its 2 configurations ran; the first: failed: RuntimeError: x")
    assert not settled(**{"quack[a]": "out of memory: OutOfMemoryError: x"})
    assert not settled(**{"quack[a]": "hung: did not finish within 240 s"})


def test_what_lacks_memory_beside_others_is_measured_alone(options: suite.Options, tmp_path: pathlib.Path) -> None:
    heard: list[suite.Result] = []
    suite.run(jobs(7, 1, 10), WHERE, dataclasses.replace(options, parallel=3), heard.append)
    assert [(r.dims["M"], r.status) for r in heard[:3]] == [
        (7, Status.INFRA_ERROR),
        (1, Status.PASS),
        (10, Status.INFRA_ERROR),
    ]
    assert "liger: out of memory" in heard[0].reason
    assert not any(r.settled for r in heard if r.status is Status.INFRA_ERROR)
    assert [(r.dims["M"], r.key == heard[0].key, "liger" in r.absent, r.settled) for r in heard[3:]] == [
        (7, True, False, True),
        (10, False, False, True),
    ]


def test_a_job_that_is_not_ready_in_time_loses_no_peer(options: suite.Options, tmp_path: pathlib.Path) -> None:
    options = dataclasses.replace(options, variant_s=60, ready_s=5)
    began = time.monotonic()
    (result,) = measure(options, jobs(8), benchmarks.Log(tmp_path / "r.jsonl")).results
    assert (result.status, result.record, result.absent) == (Status.TIMEOUT, None, {})
    assert result.reason == "not ready within 5 s; at work: liger"
    assert time.monotonic() - began < 25  # it was waited for once


def test_a_job_that_breaks_the_gpu_is_logged_and_comes_last_when_resumed(
    options: suite.Options, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = type("Health", (), {"state": "unusable", "reason": "no answer"})
    monkeypatch.setattr(suite, "gpu_health", lambda **_: health)
    options, log = dataclasses.replace(options, parallel=1), benchmarks.Log(tmp_path / "r.jsonl")
    with pytest.raises(BenchUnavailable, match="unusable after a crash"):
        measure(options, jobs(4, 1), log)
    assert [r.status for r in log.results.values()] == [Status.CRASH]
    with pytest.raises(BenchUnavailable):
        measure(options, jobs(4, 1), log, resume=True)
    assert sorted(r.status for r in log.results.values()) == [Status.CRASH, Status.PASS]


def test_a_process_that_dies_between_its_steps_is_the_machines_fault(
    options: suite.Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed: list[object] = []
    monkeypatch.setattr(
        suite,
        "gpu_health",
        lambda **_: probed.append(1) or type("Health", (), {"state": "healthy", "reason": ""}),  # type: ignore[func-returns-value]
    )
    heard: list[suite.Result] = []
    suite.run(jobs(5, 9), WHERE, dataclasses.replace(options, parallel=2), heard.append)
    assert [(r.dims["M"], r.status) for r in heard[:2]] == [(5, Status.PASS), (9, Status.INFRA_ERROR)]
    assert probed


def test_an_interrupt_ends_what_gets_ready(options: suite.Options, tmp_path: pathlib.Path) -> None:
    """Ctrl-C while two processes get ready for a minute: everything has ended within seconds."""
    script, path = tmp_path / "sweep.py", tmp_path / "said"
    script.write_text(
        textwrap.dedent(f"""
        import pathlib, sys
        sys.path[:0] = [{str(HERE)!r}, {str(ROOT)!r}]
        from agent.verify import suite
        import test_suite as t
        suite.WORKER = "bench_double:work"
        options = suite.Options(rounds=9, parallel=2, env={dict(options.env)!r})
        print("go", flush=True)
        suite.run(t.jobs(8, 3), t.WHERE, options, lambda result: None)
        """),
        encoding="utf-8",
    )
    with path.open("wb") as said:
        process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=said)
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        time.sleep(4)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        process.wait(timeout=60)
        process.stdout.close()
    assert time.monotonic() - began < 15
    assert b"KeyboardInterrupt" in path.read_bytes()


def test_the_products_that_no_output_has_need_memory_too() -> None:
    target = benchmarks.of_example("gemm_cross_entropy")
    m, n, k = 1024, 65536, 16
    (job,) = benchmarks.jobs([target], lambda spec: [{"M": m, "N": n, "K": k}])
    assert suite.needed(job) > suite.BYTES_PER_ELEMENT * (m * n + m * k + k * n)
    (plain,) = jobs(1024)
    declared = suite.needed(dataclasses.replace(plain, program="{}"))  # no program of this task
    assert suite.needed(plain) == declared


def test_a_resumed_sweep_repeats_nothing_that_is_settled(options: suite.Options, tmp_path: pathlib.Path) -> None:
    log = benchmarks.Log(tmp_path / "results.jsonl")
    first = measure(options, jobs(1, 4), log)
    again = benchmarks.Log(log.path)
    second = measure(options, jobs(1, 4, 6), again, resume=True)
    assert (first.reused, second.reused) == (0, 1)  # a crash is tried again
    assert second.results[0] == first.results[0]
    assert [r.status for r in second.results] == [Status.PASS, Status.CRASH, Status.WRONG_VALUES]
    assert measure(options, jobs(1), again).reused == 0  # not resumed: measured again


def test_another_protocol_or_peer_set_is_another_result(options: suite.Options) -> None:
    (job,) = jobs(1)
    where = suite.machine(options)
    assert where == WHERE
    key = suite.key_of(job, options, where.environment)
    assert key == suite.key_of(job, options, {**where.environment, "sm_clock_mhz": "1755"})
    others = {
        suite.key_of(job, dataclasses.replace(options, protocol="paper"), where.environment),
        suite.key_of(dataclasses.replace(job, peers=("quack",)), options, where.environment),
        suite.key_of(job, options, {**where.environment, "torch": "3"}),
        suite.key_of(dataclasses.replace(job, digest="x"), options, where.environment),
    }
    assert len(others | {key}) == 5


def test_another_judge_task_or_measured_schedule_is_another_result(
    options: suite.Options, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = jobs(64)

    def key(options: suite.Options = options) -> str:
        return suite.key_of(job, options, WHERE.environment)

    def entry(gpu: str, m: int, created: str, **best: int) -> schedules.Entry:
        ((part, problem),) = suite._parts(job.program, "rms_scale", job.task["folder"], tuple(job.dims.items()))
        about = schedules.Key(part.digest, dataclasses.replace(problem, m=m, arch="sm_90"), gpu, (("torch", "2"),))
        timed = [schedules.Candidate(Schedule(tile_m=t), "candidate", "timed", samples=(1.0,)) for t in (64, 128)]
        return schedules.Entry(about, "s", ("triton",), tuple(timed), best, best["triton"], None, created, 1.0)

    seen = [key()]
    schedules.write(entry("another GPU", 64, "2026-01-01", triton=0))
    schedules.write(entry("NVIDIA Test", 65, "2026-01-01", triton=0))
    assert key() == seen[0]  # nothing that this job would take
    for at in (0, 1):
        path = schedules.write(entry("NVIDIA Test", 64, "2026-01-01", triton=at))
        os.utime(path, ns=(at, at))
        seen.append(key())
    path = schedules.write(entry("NVIDIA Test", 64, "2026-02-02", triton=1))
    os.utime(path, ns=(5, 5))
    assert key() == seen[-1]  # tuned again, with the same outcome
    assert key(dataclasses.replace(options, env={"CODA_CACHE_DIR": str(tmp_path / "empty")})) == seen[0]
    (path.parent / "damaged.json").write_text("[1")
    assert key() == seen[-1]
    monkeypatch.setattr(suite, "_judge", lambda task, folder: "another")
    seen.append(key())
    assert len(set(seen)) == 4
    monkeypatch.undo()
    monkeypatch.setattr(suite, "judge_digest", lambda task_digest: f"judge of {task_digest}")
    assert suite._judge.__wrapped__("rms_scale", job.task["folder"]) == f"judge of {tasks.load('rms_scale').digest}"


def test_a_judges_digest_is_of_its_files_and_the_task(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "agent" / "verify" / "suite.py"
    path.parent.mkdir(parents=True)
    path.write_text("1")
    seen = {identity.judge_digest("task", tmp_path), identity.judge_digest("another", tmp_path)}
    path.write_text("2")
    assert len(seen | {identity.judge_digest("task", tmp_path)}) == 3


def test_a_sweep_that_is_killed_goes_on(options: suite.Options, tmp_path: pathlib.Path) -> None:
    """kill -9 while the third of four is raced: two results are whole, nothing is left running, and the rest is measured."""
    script = tmp_path / "sweep.py"
    script.write_text(
        textwrap.dedent(f"""
        import pathlib, sys
        sys.path[:0] = [{str(HERE)!r}, {str(ROOT)!r}]
        from agent.keeping import benchmarks
        from agent.verify import suite
        import test_suite as t
        suite.WORKER, suite._judge = "bench_double:work", t.judge
        options = suite.Options(rounds=9, parallel=1, env={dict(options.env)!r})
        log = benchmarks.Log(pathlib.Path({str(tmp_path / "results.jsonl")!r}))
        benchmarks.measure(t.jobs(1, 11, 5, 6), t.WHERE, options, log, resume=True)
        """),
        encoding="utf-8",
    )
    path = tmp_path / "results.jsonl"
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") == 2:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said.decode()
    log = benchmarks.Log(path)
    assert len(log.results) == 2
    path.write_bytes(path.read_bytes() + b'{"key": "torn')  # and what a killed writer may leave
    sweep = measure(options, jobs(1, 11, 5, 6), benchmarks.Log(path), resume=True)
    assert sweep.reused == 2
    assert [r.record is not None for r in sweep.results] == [True, True, True, False]
    assert len(benchmarks.Log(path).results) == 4


def test_only_one_measures_on_a_gpu(options: suite.Options, tmp_path: pathlib.Path) -> None:
    with gpu_lock(WHERE.gpu, timeout_s=1), pytest.raises(BenchUnavailable, match="another process"):
        suite.run(jobs(1), WHERE, options, lambda result: None)


def test_time_that_is_up_stops_before_the_next_wave(options: suite.Options, tmp_path: pathlib.Path) -> None:
    sweep = measure(dataclasses.replace(options, stop_s=0.0), jobs(1), benchmarks.Log(tmp_path / "r.jsonl"))
    assert (sweep.results, sweep.left) == ((), 1)


def test_waves_fit_the_processors_and_the_memory() -> None:
    wanted = jobs(1, 1, 1, 1, 1)
    assert [len(w) for w in suite.waves(wanted, 2, 2**40)] == [2, 2, 1]
    assert [len(w) for w in suite.waves(wanted, 9, int(2.1 * suite.needed(wanted[0]) / suite.SHARE))] == [2, 2, 1]
    assert [len(w) for w in suite.waves(wanted, 9, 1)] == [
        1
    ] * 5  # one that is too large for the rule still gets its try


def test_without_a_gpu_nothing_is_measured() -> None:
    with pytest.raises(BenchUnavailable, match="no GPU"):
        suite.machine()


# the journal ------------------------------------------------------------------------------------------------------------


def test_a_journal_names_who_was_at_work(tmp_path: pathlib.Path) -> None:
    path, left = tmp_path / "j", []
    journal = Journal(path, 60, leave=left.append)
    assert last_at_work(path) is None
    with journal("eager"):
        assert last_at_work(path) == ("eager", False)
    assert last_at_work(path) is None
    with pytest.raises(ZeroDivisionError), journal("liger"):
        raise ZeroDivisionError
    assert last_at_work(path) is None  # it failed, and the process lives
    assert left == []


def test_a_variant_that_has_finished_is_not_late(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is up while the end is being written: nothing is ended, and nobody is blamed."""
    path, left = tmp_path / "j", []  # type: ignore[var-annotated]
    journal = Journal(path, 0.2, leave=left.append)
    note = journal.note

    def slowly(mark: str, name: str) -> None:
        time.sleep(0.4 if mark == "<" else 0)
        note(mark, name)

    monkeypatch.setattr(journal, "note", slowly)
    with journal("eager"):
        pass
    assert left == []
    assert last_at_work(path) is None


def test_what_a_process_writes_after_its_end_does_not_count(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "j"
    path.write_text("> liger\n! liger\n< liger\n")
    assert last_at_work(path) == ("liger", True)


def test_a_late_variant_and_a_broken_device_end_the_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left = tmp_path / "j", []
    with Journal(path, 0.05, leave=left.append)("slow"):
        until = time.monotonic() + 5
        while not left and time.monotonic() < until:
            time.sleep(0.01)
        assert last_at_work(path) == ("slow", True)
    assert left == [TOO_LONG]
    monkeypatch.setattr("agent.verify.journal._usable", lambda: False)
    with pytest.raises(RuntimeError), Journal(path, 60, leave=left.append)("bad"):
        raise RuntimeError
    assert left == [TOO_LONG, BROKEN]


# records beside the kernels ---------------------------------------------------------------------------------------------


def test_records_are_kept_beside_their_kernels(
    options: suite.Options, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmarks, "RECORDS", tmp_path / "records")
    target = dataclasses.replace(benchmarks.of_example("rms_scale"), digest="d")

    def with_record(found: BenchRecord) -> suite.Result:
        return result.model_copy(update={"kernel": target.id, "record": json.loads(found.to_json())})

    (result, *_) = measure(options, jobs(1), benchmarks.Log(tmp_path / "r.jsonl")).results
    record = benchmarks.record_of(result)
    assert record is not None
    (path,) = benchmarks.keep([target], [with_record(record)])
    assert path == tmp_path / "records" / "nvidia-test.json"
    assert measured.of_file(path) == (record,)
    other = dataclasses.replace(record, dims={"M": 7, "N": 1, "K": 1})
    newer = dataclasses.replace(record, noise_floor=0.02)
    published = dataclasses.replace(record, protocol={**record.protocol, "name": "paper"})
    benchmarks.keep([target], [with_record(r) for r in (other, newer, published)])
    assert sorted(r.noise_floor for r in measured.of_file(path)) == sorted(  # type: ignore[union-attr]
        [other.noise_floor, 0.02, published.noise_floor]
    )
    changed = dataclasses.replace(target, digest="e")  # the example is another program now
    benchmarks.keep([changed], [with_record(dataclasses.replace(record, program_digest="e"))])
    assert [r.program_digest for r in measured.of_file(path)] == ["e"]  # type: ignore[union-attr]
