"""Starting, limiting and killing: nothing survives a child, and nothing else is hit."""

from __future__ import annotations

import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from agent.verify.process import (
    Captured,
    Child,
    Ending,
    HeadTail,
    Limits,
    bad_end,
    marked,
    scrubbed_environment,
    sweep,
    tool_environment,
)

pytestmark = pytest.mark.null

PROC = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def python(code: str) -> object:
    """An argv factory: `FD` in the code is the answer descriptor."""
    return lambda descriptor: [sys.executable, "-S", "-c", f"import os, sys, time, signal\nFD = {descriptor}\n{code}"]


def finish(code: str, **limits: object) -> tuple[Child, Ending]:
    settings = Limits.model_validate({"wall_s": 10, **limits})
    with Child(python(code), env=scrubbed_environment(), limits=settings) as child:  # type: ignore[arg-type]
        child.send(b"", close=True)
        child.pump(until=lambda: False)
        return child, child.end()


def gone(child: Child) -> bool:
    return not marked(child.mark) and not pathlib.Path(child._folder).exists()


def test_streams_answer_and_exit_code_are_kept_apart() -> None:
    child, ending = finish("print('out'); print('err', file=sys.stderr); os.write(FD, b'answer'); sys.exit(7)")
    assert bytes(child.answer) == b"answer"
    assert (ending.stdout.text, ending.stderr.text) == ("out\n", "err\n")
    assert (ending.exit_code, ending.signal, ending.killed) == (7, None, "")
    assert ending.max_rss_mb > 1
    assert gone(child)


def test_stdin_arrives_whole_even_when_larger_than_a_pipe() -> None:
    with Child(
        python("os.write(FD, str(len(sys.stdin.read())).encode())"), env=scrubbed_environment(), limits=Limits()
    ) as child:  # type: ignore[arg-type]
        child.send(b"x" * 3_000_000, close=True)
        child.pump(until=lambda: False)
    assert bytes(child.answer) == b"3000000"


def test_a_program_that_does_not_read_its_stdin_is_no_problem() -> None:
    with Child(python("pass"), env=scrubbed_environment(), limits=Limits()) as child:  # type: ignore[arg-type]
        child.send(b"x" * 3_000_000, close=True)
        assert child.pump(until=lambda: False) == "ended"
        assert child.end().exit_code == 0


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGTERM"])
def test_signals_are_named(name: str) -> None:
    _, ending = finish(f"os.kill(os.getpid(), signal.{name})")
    assert (ending.exit_code, ending.signal) == (None, name)


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(100)",
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]\nwhile True: pass",
        "os.close(0); os.close(1); os.close(2); os.close(FD); time.sleep(100)",
    ],
)
def test_the_wall_limit_kills_whatever_the_program_ignores_or_closes(code: str) -> None:
    child, ending = finish(code, wall_s=0.5)
    assert ending.killed == "timeout"
    assert ending.seconds < 3
    assert gone(child)


def test_a_program_that_stops_itself_is_killed_too() -> None:
    child, ending = finish("os.kill(os.getpid(), signal.SIGSTOP)", wall_s=0.5)
    assert ending.killed == "timeout"
    assert gone(child)


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]
        time.sleep(100)
    os._exit(0)
time.sleep(0.05)
"""


@PROC
def test_a_daemon_in_a_session_of_its_own_does_not_survive() -> None:
    child, ending = finish(DAEMON)
    assert ending.exit_code == 0
    assert ending.leftovers == 1
    assert gone(child)


@PROC
def test_a_daemon_with_an_empty_environment_does_not_survive() -> None:
    code = DAEMON.replace("time.sleep(100)", "os.execve('/bin/sleep', ['sleep', '98765.4321'], {})", 1)
    finish(code)
    assert "98765.4321" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


@PROC
@pytest.mark.parametrize("leave", ["pass", "os.setsid()"], ids=["one group", "a session each"])
def test_a_fork_bomb_does_not_survive(leave: str) -> None:
    bomb = f"while True:\n    try:\n        if os.fork(): os._exit(0)\n        {leave}\n    except OSError:\n        pass\n"
    child, ending = finish("for i in range(5): os.fork()\n" + bomb, wall_s=0.5)
    assert ending.leftovers > 0
    assert ending.unkillable == 0
    assert ending.seconds < 5
    assert gone(child)


@PROC
def test_memory_of_the_whole_tree_counts() -> None:
    code = "os.fork()\nx = bytearray(120 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\ntime.sleep(100)"
    child, ending = finish(code, memory_mb=200)
    assert ending.killed == "memory"
    assert ending.max_rss_mb > 200
    assert gone(child)


def test_two_hundred_megabytes_of_output_are_drained_in_constant_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, ending = finish("for i in range(200): os.write(1, b'x' * 2**20)\nos.write(1, b'end')")
    assert ending.stdout.total_bytes > 200 * 2**20
    assert ending.stdout.tail.endswith("end")
    assert ending.exit_code == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024


@pytest.mark.parametrize(
    ("code", "why"), [("os.write(1, b'x' * 65536)", "output"), ("os.write(FD, b'x' * 65536)", "answer")]
)
def test_output_and_answer_are_capped(code: str, why: str) -> None:
    child, ending = finish(f"while True: {code}", output_mb=4, answer_bytes=1 << 20)
    assert ending.killed == why
    assert len(child.answer) <= (1 << 20) + 1
    assert gone(child)


@PROC
def test_an_exception_in_the_judge_kills_everything() -> None:
    child = Child(python(DAEMON + "time.sleep(100)"), env=scrubbed_environment(), limits=Limits())  # type: ignore[arg-type]
    time.sleep(0.3)
    assert len(marked(child.mark)) >= 2

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), child:
        child.pump(until=interrupt)
    assert gone(child)


JUDGE = """
import sys, time
from agent.verify.process import Child, Limits, scrubbed_environment
argv = lambda fd: [sys.executable, "-S", "-c", "import time, os; os.fork(); time.sleep(100)"]
child = Child(argv, env=scrubbed_environment(), limits=Limits(), mark=sys.argv[1])
print("started", flush=True)
child.pump(until=lambda: False)
"""


@PROC
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_judge_leaves_nothing_running(number: int) -> None:
    mark = f"test-{os.getpid()}-{number}"
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
    judge = subprocess.Popen(
        [sys.executable, "-c", JUDGE, mark], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert judge.stdout is not None
    assert judge.stdout.readline() == b"started\n"
    until = time.monotonic() + 5
    while len(marked(mark)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(marked(mark)) >= 3
    judge.send_signal(number)
    judge.communicate()
    until = time.monotonic() + 5
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.02)
    assert marked(mark) == []


@PROC
def test_survivors_of_a_killed_watchdog_are_found_by_their_mark() -> None:
    child, ending = finish(
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(100)\nos.kill(os.getppid(), 9)\ntime.sleep(100)"
    )
    assert ending.killed == "watchdog-lost"
    assert ending.leftovers >= 1
    assert gone(child)
    assert sweep(child.mark) == 0


def test_a_sibling_is_not_hit() -> None:
    sibling = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        finish("time.sleep(100)", wall_s=0.3)
        finish(DAEMON)
        assert sibling.poll() is None
    finally:
        sibling.kill()
        sibling.wait()


def test_a_program_that_cannot_be_started_says_so() -> None:
    with Child(lambda _: ["/nonexistent/program"], env=scrubbed_environment(), limits=Limits()) as child:
        child.pump(until=lambda: False)
        ending = child.end()
    assert ending.exit_code == 127
    assert "cannot start /nonexistent/program" in ending.stderr.text


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(exit_code=0), None),
        (Ending(exit_code=3), ("CRASH", "exit-code")),
        (Ending(signal="SIGSEGV"), ("CRASH", "SIGSEGV")),
        (Ending(signal="SIGXCPU"), ("TIMEOUT", "cpu-limit")),
        (Ending(signal="SIGKILL", cpu_s=8.0), ("TIMEOUT", "cpu-limit")),
        (Ending(signal="SIGKILL", cpu_s=1.0), ("CRASH", "SIGKILL")),
        (Ending(killed="timeout"), ("TIMEOUT", "wall-limit")),
        (Ending(killed="output"), ("CRASH", "output-limit")),
        (Ending(killed="memory"), ("CRASH", "memory-limit")),
        (Ending(killed="answer"), ("CRASH", "answer-limit")),
        (Ending(killed="closed"), ("INFRA_ERROR", "closed")),
        (Ending(killed="watchdog-lost"), ("INFRA_ERROR", "watchdog-lost")),
        (Ending(exit_code=127, stderr=Captured(head="cannot start x")), ("INFRA_ERROR", "not-started")),
    ],
)
def test_every_end_has_its_word(ending: Ending, said: tuple[str, str] | None) -> None:
    bad = bad_end(ending, Limits(), cpu_s=8)
    assert (bad and bad[:2]) == said
    assert bad is None or bad.message


def test_a_limit_that_was_not_set_is_not_hit() -> None:
    assert (bad_end(Ending(signal="SIGXCPU"), Limits()) or ("",))[0] == "CRASH"


@PROC
def test_descriptors_do_not_leak() -> None:
    finish("pass")
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        finish("pass")
        finish("time.sleep(100)", wall_s=0.1)
    assert sorted(os.listdir("/proc/self/fd")) == before


@PROC
def test_the_program_holds_no_descriptor_but_its_own() -> None:
    child, _ = finish("os.write(FD, ','.join(sorted(os.listdir('/proc/self/fd'), key=int)).encode())")
    own = {int(fd) for fd in bytes(child.answer).split(b",")}
    assert len(own - {0, 1, 2}) <= 2  # the answer, and the listing itself


def test_environments_hold_no_secrets() -> None:
    given = {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "k",
        "CODA_AGENT_TOKEN": "t",
        "TRITON_INTERPRET": "1",
        "AWS_PROFILE": "p",
    }
    assert tool_environment(given) == {"PATH": "/bin", "TRITON_INTERPRET": "1"}
    assert "HOME" not in scrubbed_environment()


@pytest.mark.parametrize("keep", [0, 1, 4, 100])
@pytest.mark.parametrize("sizes", [(0,), (3,), (4, 1), (5,), (1, 1, 1, 1, 1, 1), (50, 60, 3), (1000,)])
def test_head_and_tail_are_those_of_the_whole_stream(keep: int, sizes: tuple[int, ...]) -> None:
    data = "".join(chr(97 + i % 26) for i in range(sum(sizes))).encode()
    stream, at = HeadTail(keep), 0
    for size in sizes:
        stream.add(data[at : at + size])
        at += size
    kept = stream.captured()
    rest = data[keep:]
    assert (kept.head, kept.total_bytes) == (data[:keep].decode(), len(data))
    assert kept.tail == (rest[-keep:].decode() if keep else "")
