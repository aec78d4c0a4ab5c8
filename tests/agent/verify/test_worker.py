"""Workers: one function of ours in a process of its own, once or for several payloads."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from agent.verify import worker
from agent.verify.process import marked
from agent.verify.worker import WorkerOutcome, WorkerSession, gpu_health, run_worker

pytestmark = pytest.mark.null

FUNCTIONS = """
import os, subprocess, sys, time

calls = 0


class Named(Exception):
    code = "named-mistake"
    hint = "do the other thing"


def work(payload):
    global calls
    calls += 1
    what = payload.get("do", "echo")
    if what == "echo":
        return {"payload": payload, "pid": os.getpid(), "calls": calls, "cwd": os.getcwd()}
    if what == "env":
        return {"env": dict(os.environ)}
    if what == "print":
        print("to stdout"); print("to stderr", file=sys.stderr); os.write(1, b"x" * 10**6)
        return {"stdin": sys.stdin.read()}
    if what == "raise":
        raise ValueError("a bad value")
    if what == "task":
        from agent.verify.blame import trusted
        with trusted("the reference"):
            raise ValueError("a bad value")
    if what == "memory is full":
        raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory")
    if what == "named":
        raise Named("it happened")
    if what == "sleep":
        subprocess.Popen(["sleep", "300"], start_new_session=True); time.sleep(300)
    if what == "exit":
        os._exit(payload["code"])
    if what == "signal":
        os.kill(os.getpid(), payload["number"])
    if what == "memory":
        x = b"x" * (400 << 20); time.sleep(300)
    if what == "nap":
        began = time.time()
        time.sleep(payload["seconds"])
        return {"from": began, "to": time.time()}
    if what == "tensor":
        return {"x": object()}
    if what == "nan":
        return {"x": float("nan")}
    if what == "big":
        return {"x": "y" * payload["size"]}
    if what == "thread":
        import threading
        threading.Thread(target=time.sleep, args=(300,)).start()
        return {}
    return what
"""


@pytest.fixture
def env(tmp_path: pathlib.Path) -> dict[str, str | None]:
    (tmp_path / "functions_under_test.py").write_text(FUNCTIONS, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([worker._package_path(), str(tmp_path)])}


WORK = "functions_under_test:work"


def call(
    env: dict[str, str | None], do: str, timeout_s: float = 20.0, memory_mb: int | None = None, **payload: object
) -> WorkerOutcome:
    return run_worker(WORK, {"do": do, **payload}, timeout_s=timeout_s, env=env, memory_mb=memory_mb)


def described(outcome: WorkerOutcome) -> tuple[str, str | None]:
    return outcome.status, outcome.error and outcome.error.code


def test_several_payloads_run_at_the_same_time_and_come_back_in_order(env: dict[str, str | None]) -> None:
    payloads = [{"do": "nap", "seconds": 1.5}, {"do": "raise"}, {"do": "nap", "seconds": 1.0}]
    outcomes = worker.call_all(run_worker, WORK, payloads, timeout_s=30, env=env)
    assert [o.status for o in outcomes] == ["PASS", "RUNTIME_ERROR", "PASS"]
    spans = [(o.result["from"], o.result["to"]) for o in outcomes if o.result is not None]
    assert max(a for a, _ in spans) < min(b for _, b in spans)  # they overlapped
    assert all(o.ending is not None for o in outcomes)
    seen: list[object] = []

    def mine(function: str, payload: dict[str, object], **limits: object) -> WorkerOutcome:
        seen.append(payload)
        return WorkerOutcome(status="PASS", result={}, seconds=0)

    assert len(worker.call_all(mine, WORK, payloads, timeout_s=30)) == 3
    assert seen == payloads


def test_a_session_can_be_stopped_from_another_thread(env: dict[str, str | None]) -> None:
    with WorkerSession(WORK, timeout_s=60, env=env) as session:
        assert session.call({"do": "echo"}).ok
        threading.Timer(0.5, session.stop).start()
        began = time.monotonic()
        assert described(session.call({"do": "sleep"})) == ("INFRA_ERROR", "closed")
        assert time.monotonic() - began < 15
        assert described(session.call({"do": "echo"})) == ("INFRA_ERROR", "closed")
        assert session.starts == 1


def test_a_result_comes_back(env: dict[str, str | None]) -> None:
    outcome = call(env, "echo", text="μ 📍", number=1.5)
    assert outcome.status == "PASS", outcome
    assert outcome.result is not None
    assert outcome.result["payload"] == {"do": "echo", "text": "μ 📍", "number": 1.5}
    assert outcome.result["pid"] != os.getpid()
    assert not pathlib.Path(outcome.result["cwd"]).exists()
    assert outcome.ending is not None
    assert outcome.ending.exit_code == 0
    assert outcome.ending.max_rss_mb > 1


@pytest.mark.parametrize(
    ("do", "status", "code"),
    [
        ("raise", "RUNTIME_ERROR", "ValueError"),
        ("named", "RUNTIME_ERROR", "named-mistake"),
        ("tensor", "RUNTIME_ERROR", "TypeError"),
        ("nan", "RUNTIME_ERROR", "ValueError"),
        ("not a dict", "RUNTIME_ERROR", "ValueError"),
        ("task", "INVALID_SPEC", "task-at-fault"),
        ("memory is full", "INFRA_ERROR", "OutOfMemoryError"),
    ],
)
def test_exceptions_come_back_in_parts(env: dict[str, str | None], do: str, status: str, code: str) -> None:
    outcome = call(env, do)
    assert described(outcome) == (status, code)
    assert outcome.result is None
    assert outcome.error is not None
    assert "Traceback" in outcome.error.traceback


def test_message_and_hint_of_our_own_exceptions(env: dict[str, str | None]) -> None:
    error = call(env, "named").error
    assert error is not None
    assert (error.message, error.hint) == ("it happened", "do the other thing")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_signals_are_crashes_by_name(env: dict[str, str | None], name: str) -> None:
    assert described(call(env, "signal", number=int(signal.Signals[name]))) == ("CRASH", name)


def test_exits_without_an_answer(env: dict[str, str | None]) -> None:
    assert described(call(env, "exit", code=3)) == ("CRASH", "exit-code")
    assert described(call(env, "exit", code=0)) == ("TAMPERED", "no-answer")


def test_a_hang_is_killed_with_what_it_started(env: dict[str, str | None]) -> None:
    started = time.monotonic()
    outcome = call(env, "sleep", timeout_s=1.0)
    assert described(outcome) == ("TIMEOUT", "wall-limit")
    assert time.monotonic() - started < 5
    assert outcome.ending is not None
    assert outcome.ending.leftovers == 1


def test_memory_is_limited(env: dict[str, str | None]) -> None:
    assert described(call(env, "memory", memory_mb=200)) == ("CRASH", "memory-limit")


def test_a_thread_that_goes_on_does_not_hold_the_answer_up(env: dict[str, str | None]) -> None:
    assert call(env, "thread", timeout_s=10).status == "PASS"


def test_a_function_that_cannot_be_imported_is_not_the_candidates_fault(env: dict[str, str | None]) -> None:
    assert described(run_worker("no_such_module:f", {}, timeout_s=20, env=env)) == (
        "INFRA_ERROR",
        "ModuleNotFoundError",
    )
    assert run_worker("functions_under_test:missing", {}, timeout_s=20, env=env).status == "INFRA_ERROR"


def test_what_libraries_print_is_kept_apart_and_stdin_is_empty(env: dict[str, str | None]) -> None:
    outcome = call(env, "print")
    assert outcome.result == {"stdin": ""}
    assert outcome.stderr_tail == "to stderr\n"
    assert outcome.ending is not None
    assert outcome.ending.stdout.total_bytes > 10**6


def test_the_environment_is_the_toolchains_without_keys(
    env: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/tmp/somewhere")
    outcome = run_worker(WORK, {"do": "env"}, timeout_s=20, env={**env, "TRITON_INTERPRET": "1", "HOME": None})
    assert outcome.result is not None
    seen = outcome.result["env"]
    assert seen["TRITON_INTERPRET"] == "1"
    assert seen["TRITON_CACHE_DIR"] == "/tmp/somewhere"
    assert "sk-secret" not in seen.values()
    assert "HOME" not in seen


def test_large_payloads_and_results(env: dict[str, str | None]) -> None:
    outcome = call(env, "big", size=10_000_000, filler="z" * 5_000_000)
    assert outcome.result is not None
    assert len(outcome.result["x"]) == 10_000_000


def test_a_result_beyond_the_cap_is_refused(env: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ANSWER_BYTES", 1 << 20)
    assert described(call(env, "big", size=4_000_000)) == ("CRASH", "answer-limit")


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_session_keeps_its_process(env: dict[str, str | None]) -> None:
    with WorkerSession(WORK, timeout_s=20, env=env) as session:
        first, second = session.call({"n": 1}), session.call({"n": 2})
        assert first.result is not None
        assert second.result is not None
        assert first.result["pid"] == second.result["pid"]
        assert second.result["calls"] == 2
        assert (first.fresh, second.fresh, session.starts) == (True, False, 1)
        assert second.seconds < first.seconds
        folder = pathlib.Path(first.result["cwd"])
    assert not folder.exists()


@pytest.mark.parametrize(
    "bad", [{"do": "raise"}, {"do": "signal", "number": 11}, {"do": "exit", "code": 0}, {"do": "sleep"}]
)
def test_after_any_failure_the_next_payload_gets_a_fresh_process(
    env: dict[str, str | None], bad: dict[str, object]
) -> None:
    with WorkerSession(WORK, timeout_s=20, env=env) as session:
        first = session.call({"n": 1})
        assert not session.call(bad, timeout_s=1.0).ok
        after = session.call({"n": 2})
    assert first.result is not None
    assert after.result is not None
    assert after.ok
    assert after.fresh
    assert after.result["calls"] == 1
    assert after.result["pid"] != first.result["pid"]


def test_a_process_that_dies_between_calls_costs_nothing(env: dict[str, str | None]) -> None:
    with WorkerSession(WORK, timeout_s=20, env=env) as session:
        first = session.call({"n": 1})
        assert first.result is not None
        os.kill(first.result["pid"], signal.SIGKILL)
        time.sleep(0.3)
        assert session.call({"n": 2}).ok
        assert session.starts == 2


def test_each_payload_has_its_own_deadline(env: dict[str, str | None]) -> None:
    with WorkerSession(WORK, timeout_s=1.5, env=env) as session:
        for _ in range(3):
            assert session.call({"n": 1}).ok
            time.sleep(0.7)
        assert session.starts == 1


INTERRUPTED = """
import sys
from agent.verify.process import Child
from agent.verify.worker import WorkerSession
real = Child.__init__
def named(self, *args, **kwargs):
    real(self, *args, **{**kwargs, "mark": sys.argv[1]})
Child.__init__ = named
with WorkerSession("functions_under_test:work", timeout_s=100, env={"PYTHONPATH": sys.argv[2]}) as session:
    session.call({})
    print("ready", flush=True)
    session.call({"do": "sleep"})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_interrupt_kills_the_worker(env: dict[str, str | None]) -> None:
    mark, path = f"worker-{os.getpid()}", str(env["PYTHONPATH"])
    judge = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, mark, path],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert judge.stdout is not None
    assert judge.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    assert marked(mark)
    judge.send_signal(signal.SIGINT)
    _, err = judge.communicate(timeout=15)
    assert b"KeyboardInterrupt" in err
    assert marked(mark) == []


# ---- health ----------------------------------------------------------------------------------------------------------


def fake_torch(folder: pathlib.Path, text: str) -> dict[str, str | None]:
    (folder / "torch.py").write_text(text, encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(folder), worker._package_path()])}


def test_without_a_gpu_the_probe_says_so(tmp_path: pathlib.Path) -> None:
    text = (
        "__version__ = '0'\nclass version: cuda = None\nclass cuda:\n    is_available = staticmethod(lambda: False)\n"
    )
    health = gpu_health(20, env=fake_torch(tmp_path, text))
    assert health.state == "no GPU"
    assert "without CUDA" in health.reason


def test_a_healthy_gpu_says_its_name_and_architecture(tmp_path: pathlib.Path) -> None:
    text = (
        "__version__ = '0'\nfloat32 = 0\nclass version: cuda = '12'\n"
        "class cuda:\n    is_available = staticmethod(lambda: True)\n"
        "    get_device_name = staticmethod(lambda: 'X1')\n    get_device_capability = staticmethod(lambda: (10, 3))\n"
        "class Numbers:\n    __add__ = lambda self, n: self\n    sum = lambda self: self\n    item = lambda self: 524800\n"
        "def arange(*_, **__): return Numbers()\n"
    )
    health = gpu_health(20, env=fake_torch(tmp_path, text))
    assert (health.state, health.device, health.arch) == ("healthy", "X1", "sm_103")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import time\ntime.sleep(100)\n", "TIMEOUT"),
        ("import os\nos.abort()\n", "SIGABRT"),
        ("raise RuntimeError('CUDA error: an illegal memory access')\n", "illegal memory access"),
    ],
)
def test_a_gpu_that_hangs_or_crashes_the_probe_is_unusable(tmp_path: pathlib.Path, text: str, reason: str) -> None:
    health = gpu_health(1.5, env=fake_torch(tmp_path, text))
    assert health.state == "unusable"
    assert reason in health.reason


@pytest.mark.gpu
def test_a_real_gpu_is_healthy_and_stays_so_after_an_illegal_access(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    (tmp_path / "gpu_functions.py").write_text(GPU_FUNCTIONS, encoding="utf-8")
    env: dict[str, str | None] = {"PYTHONPATH": os.pathsep.join([worker._package_path(), str(tmp_path)])}
    assert gpu_health(120).state == "healthy"
    with WorkerSession("gpu_functions:work", timeout_s=120, env=env) as session:
        assert session.call({"bad": False}).ok
        crashed = session.call({"bad": True})
        assert crashed.status in ("RUNTIME_ERROR", "CRASH"), crashed
        after = session.call({"bad": False})
        assert after.ok
        assert after.fresh
    hung = run_worker("gpu_functions:hang", {}, timeout_s=20, env=env)
    assert hung.status == "TIMEOUT"
    assert hung.ending is not None
    assert hung.ending.unkillable == 0
    assert gpu_health(120).state == "healthy"


GPU_FUNCTIONS = """
def work(payload):
    import torch, triton, triton.language as tl
    global kernel
    @triton.jit
    def kernel(x, n):
        tl.store(x + n, 1.0)
    x = torch.zeros(16, device="cuda")
    kernel[(1,)](x, 2**40 if payload["bad"] else 3)
    torch.cuda.synchronize()
    return {"x": x.sum().item()}


def hang(payload):
    import torch
    torch.cuda._sleep(2**62)
    torch.cuda.synchronize()
    return {}
"""
